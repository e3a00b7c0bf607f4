"""One script per claim: each prints what it measured and on what."""

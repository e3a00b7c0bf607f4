"""What surrounds the router: examples, container files, the demo."""

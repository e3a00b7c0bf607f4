"""Requests to copy that work on the running stack as they stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_PROMPT = (
    "One beginning that many prompts share is computed once, kept in blocks, and found again by all that come later: "
)
_PROMPT += "that is what all of this is about."
"""More than one block of 16 tokens, so that the second request finds something."""
_JSON = "-H 'Content-Type: application/json'"


def curls(url: Callable[[str], str], variables: Mapping[str, str]) -> str:
    """A completion through the gateway, then the question where the same prompt would go now. `url` of a service."""
    model = variables.get("MODEL", "tiny")
    token = ' -H "Authorization: Bearer $KVROUTE_TOKEN"' if variables.get("KVROUTE_TOKEN") else ""
    return "\n".join(
        (
            "To try it; the second says where the same prompt would go, and why:",
            "",
            f"  curl -s {url('gateway')}/v1/completions {_JSON} \\",
            f"""       -d '{{"model": "{model}", "prompt": "{_PROMPT}", "max_tokens": 8}}'""",
            f"  curl -s {url('router-0')}/route{token} {_JSON} \\",
            f"""       -d '{{"model": "{model}", "prompt": "{_PROMPT}", "dry_run": true, "explain": true}}'""",
            "",
            f"  {url('router-0')}/openapi.json   the router's whole interface",
            f"  {url('prometheus')}",
        )
    )

"""Whether an engine says of itself that it can serve."""

from __future__ import annotations

from engine.inquiry import Inquiry
from index.worker import EngineKind

_QUICK = {EngineKind.VLLM: "/health", EngineKind.SGLANG: "/ready"}
"""vLLM's tells at once whether the engine core is dead (`entrypoints/serve/instrumentator/health.py`). SGLang's tells
whether the server has started and its last thorough check went well; older releases do not have it."""

_THOROUGH = "/health"
"""vLLM's is the same as the quick one. SGLang generates a token for it and answers after a second at the earliest,
after 20 s that nothing came back (`entrypoints/http_server.py`): no answer means busy, only a 503 means ill."""

SERVER_ERROR = 500


async def complaint(inquiry: Inquiry, *, thorough: bool = False) -> str | None:
    """Why the engine cannot serve, in its own words; None when it does not say so."""
    path = _THOROUGH if thorough else _QUICK[inquiry.kind]
    status = await inquiry.status(path)
    return None if status is None else illness(path, status)


def illness(path: str, status: int) -> str | None:
    """What an answer of 5xx says, in words; None for any other."""
    return f"answers {status} to GET {path}" if status >= SERVER_ERROR else None

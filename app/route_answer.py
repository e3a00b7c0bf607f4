"""The answer to a routing request: a JSON object, and the same facts as headers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from app.candidates import judgement, remark, unknown_names
from app.fleet import Fleet
from app.routing import Routed
from index.worker import Worker
from router.candidate import Candidate, Decision
from router.route import Router


def answer_body(routed: Routed, fleet: Fleet, router: Router) -> dict[str, Any]:
    """The answer's members, in their order."""
    chosen = routed.chosen
    instance = fleet.get(chosen.worker.instance)
    ranks = len(instance.workers) if instance else 1
    body: dict[str, Any] = {
        "request_id": routed.request_id,
        "model": routed.request.model,
        "instance": chosen.worker.instance,
        "dp_rank": chosen.worker.dp_rank,
        "url": chosen.url,
        "headers": {"X-data-parallel-rank": str(chosen.worker.dp_rank)} if ranks > 1 else {},
        "prompt_tokens": None if routed.tokens is None else len(routed.tokens) >> 2,
        "matched_tokens": chosen.matched,
        "reusable_tokens": chosen.reusable,
        "reason": routed.decision.reason,
        "trust": chosen.trust.value,
    }
    if routed.detail is not None:
        body["detail"] = routed.detail
    if routed.request.explain:
        body["candidates"] = [shown_candidate(one, routed.decision, fleet, router) for one in routed.candidates]
        body["unknown_candidates"] = unknown_names(routed.request.candidates or (), routed.target.instances)
    return body


def answer_headers(routed: Routed) -> dict[str, str]:
    """The answer as headers, for gateways that cannot read a body. Text beyond ASCII is percent-encoded."""
    chosen = routed.chosen
    return {**_whereabouts(chosen.worker, chosen.url), **_of_request(routed)}


def answer_lines(routed: Routed) -> str:
    """The same as lines of HTTP."""
    chosen = routed.chosen
    return _where_lines(chosen.worker, chosen.url) + _lines(_of_request(routed))


def shown_candidate(candidate: Candidate, decision: Decision | None, fleet: Fleet, router: Router) -> dict[str, Any]:
    """A candidate as `explain` shows it; without a decision it has no score."""
    worker, load = candidate.worker, candidate.load
    instance = fleet.get(worker.instance)
    judged = None if instance is None else judgement(instance, worker.dp_rank)
    gpu, cpu, disk, other = candidate.by_medium
    media = {"gpu": gpu, "cpu": cpu, "disk": disk}
    if other:
        media["other"] = other
    score = None if decision is None else decision.scores.get(worker)
    return {
        "instance": worker.instance,
        "dp_rank": worker.dp_rank,
        "engine": instance.settings.engine.value if instance else None,
        "url": candidate.url,
        "matched_tokens": candidate.matched,
        "reusable_tokens": candidate.reusable,
        "by_medium": media,
        "trust": candidate.trust.value,
        "load": {
            "running": load.running,
            "waiting": load.waiting,
            "kv_usage": load.kv_usage,
            "inflight_prefill_tokens": router.inflight_prefill_tokens(worker),
        },
        "score": None if score is None else round(score, 4),
        "state": None if judged is None else judged.state.value,
        "eligible": candidate.why is None,
        "why": candidate.why or (None if judged is None else remark(judged)),
    }


def _whereabouts(worker: Worker, url: str) -> dict[str, str]:
    return {
        "x-kvroute-instance": _header(worker.instance),
        "x-kvroute-url": _header(url),
        "x-kvroute-dp-rank": str(worker.dp_rank),
    }


@lru_cache(maxsize=4096)  # of one worker they are always the same
def _where_lines(worker: Worker, url: str) -> str:
    return _lines(_whereabouts(worker, url))


def _of_request(routed: Routed) -> dict[str, str]:
    return {"x-kvroute-matched-tokens": str(routed.chosen.matched), "x-kvroute-request-id": routed.request_id}


def _lines(headers: dict[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _header(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isascii() and char.isprintable() and char != "%" else _percent(char) for char in text)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))

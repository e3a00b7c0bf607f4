"""Learning from an engine over HTTP where its KV events are and what else it says about itself."""

from __future__ import annotations

from typing import assert_never

from engine.address import EngineAddress
from engine.facts import EngineFacts
from engine.http_answer import EngineUnreachable
from engine.http_client import HttpClient
from engine.inquiry import Inquiry
from engine.sglang_facts import sglang_facts, sglang_fingerprint
from engine.vllm_facts import vllm_facts, vllm_fingerprint
from index.worker import EngineKind

__all__ = ["EngineFacts", "EngineUnreachable", "discover", "facts", "fingerprint"]


async def discover(client: HttpClient, address: EngineAddress, timeout_s: float, model: str = "") -> EngineFacts:
    """Everything the engine tells. Each question takes at most `timeout_s`; some may fail.

    `model` is a name it serves, beside those that it lists. EngineUnreachable when no question was answered, not even
    by one that it wants a key.
    """
    return await facts(Inquiry(client, address, timeout_s), model)


async def facts(inquiry: Inquiry, model: str = "") -> EngineFacts:
    """`discover` by questions of which the caller keeps how they went."""
    match inquiry.kind:
        case EngineKind.VLLM:
            return await vllm_facts(inquiry, model)
        case EngineKind.SGLANG:
            return await sglang_facts(inquiry)
        case _:
            assert_never(inquiry.kind)


async def fingerprint(client: HttpClient, address: EngineAddress, timeout_s: float) -> str | None:
    """A text that another process of the same engine does not have; None when the engine does not tell.

    vLLM: `process_start_time_seconds` of `/metrics` (absent with several API server processes). SGLang: the durations
    of its start in `/server_info` (absent in old releases).
    """
    inquiry = Inquiry(client, address, timeout_s)
    match address.kind:
        case EngineKind.VLLM:
            return await vllm_fingerprint(inquiry)
        case EngineKind.SGLANG:
            return await sglang_fingerprint(inquiry)
        case _:
            assert_never(address.kind)

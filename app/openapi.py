"""What /docs shows of bodies and answers. Bodies are read by hand (app/route_body.py); their schema is that code's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from app.route_fields import MAX_TOKEN_ID, RouteFields

Reason = Literal["prefix", "load", "cold", "affinity", "only", "fallback"]
TrustWord = Literal["exact", "partial", "none"]
StateWord = Literal["connecting", "live", "suspect", "down", "ejected", "starting", "asleep", "draining", "refused"]

_NOT_IN_QUERY = ("token_ids", "prompt", "messages", "tools", "chat_template_kwargs", "add_generation_prompt")


class Tiers(BaseModel):
    """Tokens or blocks by where they lie; `other`: tiers that are not known."""

    gpu: int
    cpu: int
    disk: int
    other: int = 0


class LoadAnswer(BaseModel):
    """An instance's load; null: not known."""

    running: float | None
    waiting: float | None
    kv_usage: float | None = Field(description="0..1")
    inflight_prefill_tokens: int = Field(
        description="prompt tokens assigned here and not computed yet, as far as known"
    )


class CandidateAnswer(BaseModel):
    """One worker that could have been chosen, and why it was not."""

    instance: str
    dp_rank: int
    engine: Literal["vllm", "sglang"]
    url: str
    matched_tokens: int
    reusable_tokens: int
    by_medium: Tiers
    trust: TrustWord
    load: LoadAnswer
    score: float | None
    state: StateWord | None
    eligible: bool
    why: str | None


class RouteAnswer(BaseModel):
    """Where to send the request. The same facts are in the x-kvroute-* headers."""

    request_id: str
    model: str
    instance: str
    dp_rank: int
    url: str
    headers: dict[str, str] = Field(description="to be copied onto the engine request")
    prompt_tokens: int | None = Field(description="null: the text could not be tokenised")
    matched_tokens: int = Field(description="leading prompt tokens whose KV the worker holds")
    reusable_tokens: int = Field(description="what the engine will skip")
    reason: Reason
    trust: TrustWord
    detail: str | None = Field(default=None, description="why text was routed by load alone")
    candidates: list[CandidateAnswer] | None = Field(default=None, description="with explain")
    unknown_candidates: list[str] | None = Field(default=None, description="with explain: names of no instance")


class MatchAnswer(BaseModel):
    """Who holds how much of a prompt, without a decision."""

    model: str
    prompt_tokens: int | None
    candidates: list[CandidateAnswer]


class HashIdentityAnswer(BaseModel):
    """What a vLLM engine's NONE_HASH is made of. `seed` "none": PYTHONHASHSEED is not set."""

    algorithm: str
    seed: str


class HashAnswer(BaseModel):
    """The hash identity a worker seems to have, and the one expected."""

    status: Literal["verified", "unverified", "mismatch", "none"]
    algorithm: str | None
    seed: str | None
    expected: HashIdentityAnswer | None
    advice: str | None = Field(description="what to change, in words")


class WorkerAnswer(BaseModel):
    """One data-parallel rank."""

    dp_rank: int = Field(description="0 and on; what X-data-parallel-rank takes")
    engine_rank: int = Field(description="the engine's own number of it: another one on a node of several")
    state: StateWord
    since: float | None = Field(description="seconds in this state; null: from the beginning")
    why: str | None = Field(description="the sign that brought it; null: nothing speaks against it")
    events: str | None = Field(description="where its events are followed; null: not known yet")
    trust: TrustWord
    block_size: int | None
    seq: int | None = Field(description="the last applied sequence number; null before any")
    lag_s: float | None
    blocks: Tiers
    hash: HashAnswer
    hash_policy: Literal["enforce", "translate"] | None = Field(
        description="what a mismatch means: refused, or a hash domain of its own; null: there is no identity"
    )
    advice: str | None = Field(description="what to change, in words")
    gaps: int
    replayed_batches: int
    resets: dict[str, int]
    wire_errors: dict[str, int]
    parked: int
    asleep: bool


class InstanceAnswer(BaseModel):
    """One instance and its workers."""

    id: str
    engine: Literal["vllm", "sglang"]
    version: str | None
    model: str
    adapters: dict[str, str] = Field(description="LoRA adapter name to path")
    url: str
    labels: dict[str, str]
    weight: float
    draining: bool
    reachable: bool | None
    state: StateWord
    since: float | None = Field(description="seconds in this state; null: from the beginning")
    why: str | None = Field(description="the sign that brought it; null: nothing speaks against it")
    unauthorized: bool = Field(description="whether it wants a key that it does not get: api_key, api_key_file")
    warning: str | None
    workers: list[WorkerAnswer]


class InstancesAnswer(BaseModel):
    """All instances."""

    instances: list[InstanceAnswer]


class ProblemAnswer(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = Field(default=None, description="the offending field")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for problem documents with these statuses."""
    return {status: {"model": ProblemAnswer, "content": {"application/problem+json": {}}} for status in statuses}


def route_body() -> dict[str, Any]:
    """`openapi_extra` of /route and /index/match: both forms of the body, and the query fields of the second."""
    schema = _route_schema()
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schema, "examples": _examples()},
                "application/octet-stream": {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "little-endian uint32 token ids; the other fields as query parameters",
                },
            },
        },
        "parameters": [
            _parameter(name, field) for name, field in schema["properties"].items() if name not in _NOT_IN_QUERY
        ],
    }


def json_body(model: type[BaseModel] | type[msgspec.Struct], example: object) -> dict[str, Any]:
    """`openapi_extra` of a handler that reads a JSON body of this type by hand."""
    schema = model.model_json_schema() if issubclass(model, BaseModel) else _inlined(model)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def _route_schema() -> dict[str, Any]:
    schema = _inlined(RouteFields)
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}, "minItems": 1}
    schema["properties"]["token_ids"] |= {"anyOf": [ids, {"type": "null"}]}
    return schema


def _inlined(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """A struct's JSON schema with its references resolved, as a single schema inside the document."""
    (_,), parts = msgspec.json.schema_components([struct])

    def resolve(node: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(parts[node["$ref"].rpartition("/")[2]])
        return {key: resolve(value) for key, value in node.items()}

    resolved: dict[str, Any] = resolve(parts[struct.__name__])
    return resolved


def _parameter(name: str, field: dict[str, Any]) -> dict[str, Any]:
    kinds = {option.get("type") for option in field.get("anyOf", [field])}
    as_json = " (as JSON)" if kinds & {"array", "object"} else ""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": f"octet-stream form only: {field.get('description', '')}{as_json}",
        "schema": {"type": "boolean" if "boolean" in kinds else "integer" if "integer" in kinds else "string"},
    }


def _examples() -> dict[str, Any]:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    return {
        "token ids": {"value": {"model": model, "token_ids": [128000, 9906, 1917, 0]}},
        "text": {"value": {"model": model, "prompt": "Hello world!", "max_tokens": 64}},
        "chat": {"value": {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "session_id": "s-1"}},
        "explain, without a trace": {
            "value": {"model": model, "token_ids": [128000, 9906], "dry_run": True, "explain": True}
        },
    }

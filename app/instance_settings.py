"""One engine instance as the settings file and `POST /instances` describe it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.addresses import endpoint_port, event_endpoint, normal_url
from app.meaning import Meaning, Unit
from index.worker import EngineKind

CLOSED = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="null")
"""How every settings model is checked: no unknown keys, no conversion between types, no NaN or Infinity."""

MAX_RANKS = 1024


def _plain(text: str) -> str:
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError("must not contain control characters or lone surrogates")
    return text


def _reachable(name: str) -> str:
    if name in (".", ".."):
        raise ValueError('must not be "." or "..": clients of HTTP take these for directories, /instances/.. is /')
    return name


PlainText = Annotated[str, AfterValidator(_plain)]
"""Any text without control characters: slashes, spaces, percent signs and every script are fine."""

Name = Annotated[PlainText, Field(min_length=1, max_length=128)]
InstanceId = Annotated[Name, AfterValidator(_reachable)]
ModelName = Annotated[PlainText, Field(min_length=1, max_length=512)]
Url = Annotated[str, Field(max_length=2048), AfterValidator(normal_url)]
Endpoint = Annotated[str, Field(max_length=2048), AfterValidator(event_endpoint)]
LabelValue = Annotated[PlainText, Field(max_length=256)]


class InstanceSettings(BaseModel):
    """An engine to route to. What is null is learnt from the engine, or from its events."""

    model_config = CLOSED

    id: Annotated[InstanceId, Meaning("its name in answers, metrics and `candidates`")] = Field(
        description='any text of 1..128 characters without control characters, unique, not "." or ".."'
    )
    engine: Annotated[EngineKind, Field(strict=False), Meaning("which engine it is")] = Field(
        description="vllm or sglang"
    )
    model: Annotated[
        ModelName,
        Meaning("what it serves; adapters are learnt", allowed="text of 1..512 characters without control characters"),
    ] = Field(description="the base model's name as requests give it")
    url: Annotated[
        Url, Meaning("where it is asked, and where the gateway sends requests", "http[s]://host[:port][/path]")
    ] = Field(description="http://host:port, where the gateway sends requests")
    events: Annotated[
        Endpoint | None,
        Meaning("rank 0's event endpoint; null: learnt from the engine", "tcp://host:port or ipc://path"),
    ] = Field(default=None, description="rank 0's event endpoint, tcp://host:port; null: learnt")
    replay: Annotated[
        Endpoint | None,
        Meaning("rank 0's replay endpoint; null: learnt from the engine", "tcp://host:port or ipc://path"),
    ] = Field(default=None, description="rank 0's replay endpoint, tcp://host:port; null: learnt")
    topic: Annotated[
        PlainText,
        Field(max_length=256),
        Meaning(
            "what the engine publishes on; when set, only messages with this whole topic count",
            allowed="text of 0..256 characters without control characters",
        ),
    ] = Field(default="", description="the topic the engine publishes on")
    dp_size: Annotated[int | None, Unit("ranks"), Meaning("data-parallel ranks (rank r: port + r); null: learnt")] = (
        Field(
            default=None,
            ge=1,
            le=MAX_RANKS,
            description="data-parallel ranks, 1..1024 (rank r: port + r); null: learnt, else 1",
        )
    )
    block_size: Annotated[int | None, Unit("tokens"), Meaning("one block of its cache; null: learnt from events")] = (
        Field(default=None, ge=1, le=1 << 20, description="tokens; null: learnt from events")
    )
    speculative: Annotated[
        Literal["eagle"] | None, Meaning("eagle: vLLM then reuses one block less, which no event shows")
    ] = Field(default=None, description="eagle (vLLM reuses one block less) or null")
    prefix_match_unit: Annotated[
        int | None,
        Unit("tokens"),
        Meaning("of hybrid models whose hashes are finer than their blocks; null: learnt from the engine"),
    ] = Field(default=None, ge=1, le=1 << 20, description="tokens; null: learnt")
    adapter_extra_keys: Annotated[
        bool | None,
        Meaning(
            "sglang: whether a request may have both an adapter and an extra_key; null: not known (docs/engines.md)"
        ),
    ] = Field(default=None, description="true, false or null")
    weight: Annotated[float, Meaning("its share of the load beside the others'; 2: twice as much")] = Field(
        default=1.0, ge=1e-6, le=1e6, description="its share of the load beside the others', above 0"
    )
    labels: Annotated[
        dict[Name, LabelValue],
        Meaning(
            "what a request's `selector` asks for, like {zone: a}",
            allowed="up to 64 texts of 0..256 characters by names of 1..128",
        ),
    ] = Field(default_factory=dict, max_length=64, description="text to text")

    @model_validator(mode="after")
    def _ports_fit(self) -> Self:
        """Rank r listens on port + r for events and for replay, so the two ranges must fit and not overlap."""
        ranks = self.dp_size or 1
        ports = [endpoint_port(endpoint) for endpoint in (self.events, self.replay) if endpoint]
        if ranks > 1 and None in ports:
            raise ValueError("an ipc endpoint has no port to count ranks on: use tcp, or dp_size 1")
        if any(port is not None and port + ranks - 1 > 65535 for port in ports):
            raise ValueError(f"with dp_size {ranks} the last rank's port is above 65535")
        if self.events and self.replay and self._overlap(self.events, self.replay, ranks):
            raise ValueError(
                f"events and replay share a port: with dp_size {ranks}, rank r listens on port + r for both"
            )
        return self

    @staticmethod
    def _overlap(events: str, replay: str, ranks: int) -> bool:
        if not events.startswith("tcp://") or not replay.startswith("tcp://"):
            return events == replay
        (host, _, port), (other, _, other_port) = events.rpartition(":"), replay.rpartition(":")
        return host == other and abs(int(port) - int(other_port)) < ranks

"""One engine instance as the settings file and `POST /instances` describe it."""

from __future__ import annotations

from itertools import starmap
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from app.addresses import normal_url
from app.engine_key import TOKEN, TOKEN_WORDS
from app.meaning import Meaning, Unit
from app.rank_endpoints import MAX_RANKS, Endpoints, listed_ranks, wrong_events
from index.worker import EngineKind

CLOSED = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="null")
"""How every settings model is checked: no unknown keys, no conversion between types, no NaN or Infinity."""

__all__ = ["CLOSED", "MAX_RANKS", "InstanceSettings", "bearer"]


def _plain(text: str) -> str:
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError("must not contain control characters or lone surrogates")
    return text


def _reachable(name: str) -> str:
    if name in (".", ".."):
        raise ValueError('must not be "." or "..": clients of HTTP take these for directories, /instances/.. is /')
    return name


def bearer(token: SecretStr) -> SecretStr:
    """A secret that can be sent as a bearer token. ValueError never repeats it."""
    if not TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError(f"must be {TOKEN_WORDS}, or null for none")
    return token


PlainText = Annotated[str, AfterValidator(_plain)]
"""Any text without control characters: slashes, spaces, percent signs and every script are fine."""

Name = Annotated[PlainText, Field(min_length=1, max_length=128)]
InstanceId = Annotated[Name, AfterValidator(_reachable)]
ModelName = Annotated[PlainText, Field(min_length=1, max_length=512)]
Url = Annotated[str, Field(max_length=2048), AfterValidator(normal_url)]
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
        Endpoints | None,
        Meaning(
            "rank 0's event endpoint, or the ranks' (docs/engines.md); null: learnt from the engine",
            "tcp://host:port or ipc://path; a list of them, one per rank; a map of them by rank",
        ),
    ] = Field(
        default=None,
        description="rank 0's event endpoint, tcp://host:port; or a list, one per rank, or a map by rank; null: learnt",
    )
    replay: Annotated[
        Endpoints | None,
        Meaning("where missed events are asked for, as `events`; null: learnt from the engine", "as `events`"),
    ] = Field(default=None, description="rank 0's replay endpoint, or the ranks', as events; null: learnt")
    api_key: Annotated[
        Annotated[SecretStr, AfterValidator(bearer)] | None,
        Meaning(
            "the key that the engine asks for (its --api-key), sent as a bearer token; shown nowhere",
            allowed=TOKEN_WORDS,
        ),
    ] = Field(default=None, description=TOKEN_WORDS + ", or null: the engine asks for none")
    api_key_file: Annotated[
        Annotated[PlainText, Field(min_length=1, max_length=4096)] | None,
        Meaning("a file that holds the key alone, read again when it changes", allowed="a path"),
    ] = Field(default=None, description="the path of a file that holds the key; null: none")
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

    @property
    def rank_count(self) -> int | None:
        """How many ranks it has, if the settings say so."""
        return self.dp_size or listed_ranks(self.events) or listed_ranks(self.replay)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Every rank has an endpoint of its own for events and for replay, and there is one key."""
        wrong = list(wrong_events(self.url, self.events, self.replay, self.dp_size))
        if self.api_key is not None and self.api_key_file is not None:
            wrong.append((("api_key_file",), None, "give api_key or api_key_file, not both"))
        if wrong:
            raise ValidationError.from_exception_data("InstanceSettings", list(starmap(_fault, wrong)))
        return self


def _fault(path: tuple[str | int, ...], value: object, sentence: str) -> InitErrorDetails:
    """As pydantic has it, at a place of its own; a `value` of None is not shown."""
    kind = PydanticCustomError("value_error", "{words}", {"words": sentence})
    return InitErrorDetails(type=kind, loc=path, input={} if value is None else value)

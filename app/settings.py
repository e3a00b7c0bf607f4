"""Every setting of the process, with its default and what is allowed. Where they come from: app/settings_file.py."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr, field_validator, model_validator

from app.ejection import EjectionRules
from app.instance_settings import CLOSED, InstanceSettings, ModelName, PlainText, bearer
from app.meaning import Meaning, Unit
from app.state_limits import WriterLimits
from app.tuning_settings import Bytes, Count, ListenerSection, RouterSection, Seconds
from store.state import StateLimits
from store.state_url import check_url


def _seed_text(seed: object) -> object:
    """`seed: null` means the same as `none`: PYTHONHASHSEED is not set on the engines."""
    return "none" if seed is None else seed


def _reachable_state(url: SecretStr) -> SecretStr:
    check_url(url.get_secret_value())
    return url


class HashSettings(BaseModel):
    """The NONE_HASH identity that the vLLM instances of a model must share."""

    model_config = CLOSED

    algorithm: Annotated[
        Literal["auto", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor"],
        Meaning("the engines' --prefix-caching-hash-algo; auto: that of the first instance that can be verified"),
    ] = Field(default="auto", description="auto, sha256, sha256_cbor, xxhash or xxhash_cbor")
    seed: Annotated[
        PlainText,
        BeforeValidator(_seed_text),
        Field(max_length=256),
        Meaning("the engines' PYTHONHASHSEED; auto: that of the first instance that can be verified"),
    ] = Field(
        default="auto",
        description='auto, none (PYTHONHASHSEED is not set), or the PYTHONHASHSEED text in quotes, like "42"',
    )
    policy: Annotated[
        Literal["enforce", "translate"],
        Meaning("enforce: a deviating instance is refused; translate: it gets a hash domain of its own"),
    ] = Field(default="enforce", description="enforce or translate")
    verify: Annotated[
        Literal["roots", "all"],
        Meaning("roots: first blocks, until one proves the identity; all: every block that can be"),
    ] = Field(
        default="roots",
        description="roots: first blocks, until one proves the identity; all: every stored block that can be",
    )

    @model_validator(mode="after")
    def _derivable(self) -> Self:
        if self.algorithm.startswith("xxhash") and self.seed == "none":
            raise ValueError(f"with {self.algorithm} an engine without PYTHONHASHSEED picks a random seed: set one")
        return self


class ModelSettings(BaseModel):
    """What differs for one model. Keys of `hash` that are absent are taken from the fleet's `hash`."""

    model_config = CLOSED

    hash: Annotated[HashSettings, Meaning("the identity asked of this model's vLLM instances")] = Field(
        default_factory=HashSettings, description="algorithm, seed, policy, verify"
    )


class AuthSettings(BaseModel):
    """Who may route and change instances."""

    model_config = CLOSED

    token: Annotated[
        Annotated[SecretStr, AfterValidator(bearer)] | None,
        Meaning(
            "the bearer token asked for on /route and writes to /instances; null: none is asked for",
            allowed="1..1024 visible ASCII characters without spaces",
        ),
    ] = Field(
        default=None,
        description="the bearer token asked for on /route and writes to /instances; null: none is asked for",
    )


class LimitSettings(BaseModel):
    """What a request may cost."""

    model_config = CLOSED

    body_bytes: Annotated[int, Unit("bytes"), Meaning("a larger body is 413")] = Field(
        default=16 << 20, ge=1024, le=1 << 30, description="1024..1073741824; a larger body is 413"
    )
    body_timeout_s: Annotated[Seconds, Meaning("for the whole body to arrive; later is 408")] = 10.0
    prompt_tokens: Annotated[int, Unit("tokens"), Meaning("a longer prompt is 422")] = Field(
        default=1 << 20, ge=1, le=1 << 28, description="1..268435456; a longer prompt is 422"
    )
    route_timeout_s: Annotated[Seconds, Meaning("for a routing answer, tokenisation included")] = 5.0
    tokenise_timeout_s: Annotated[Seconds, Meaning("for one engine to tokenise a text; then the next is asked")] = 3.0


class PollingSettings(BaseModel):
    """How often engines are asked over HTTP, in seconds."""

    model_config = CLOSED

    load_interval_s: Annotated[Seconds, Meaning("between two readings of an engine's load")] = 1.0
    discovery_interval_s: Annotated[
        Seconds, Meaning("between two looks at what an engine offers: version, event endpoints, adapters")
    ] = 10.0
    timeout_s: Annotated[Seconds, Meaning("for one answer")] = 2.0


class AvailabilitySettings(BaseModel):
    """When an engine is left out, by its own signs and by what gateways report."""

    model_config = CLOSED

    silent_s: Annotated[Seconds, Meaning("an engine that answered nothing over HTTP for so long is left out")] = 2.5
    eject_failures: Annotated[
        int, Unit("requests"), Meaning("failed requests in a row, as gateways report them, until an engine is ejected")
    ] = Field(default=3, ge=1, le=10_000, description="1..10000 requests")
    eject_s: Annotated[Seconds, Meaning("how long it is ejected first; twice as long each further time")] = 5.0
    eject_max_s: Annotated[Seconds, Meaning("the longest such time")] = 300.0
    trial_s: Annotated[
        Seconds,
        Meaning("after an ejection one request is a trial; without a report of it the next follows so much later"),
    ] = 30.0

    def ejection(self) -> EjectionRules:
        """The ejection's share."""
        return EjectionRules(self.eject_failures, self.eject_s, self.eject_max_s, self.trial_s)


class StateSettings(BaseModel):
    """The state store's times and bounds. It is never on the way of a request."""

    model_config = CLOSED

    call_timeout_s: Annotated[Seconds, Meaning("for one write to the state store")] = 2.0
    load_timeout_s: Annotated[Seconds, Meaning("to read one worker's state at start")] = 10.0
    ttl_s: Annotated[Seconds, Meaning("until state expires when nobody follows the worker")] = 86_400.0
    poll_s: Annotated[Seconds, Meaning("between two looks at what other replicas changed")] = 0.5
    queue_batches: Annotated[Count, Unit("batches"), Meaning("so much may wait for a slow store")] = 100_000
    queue_bytes: Annotated[Bytes, Meaning("so much may wait for a slow store")] = 256 << 20
    snapshot_batches: Annotated[int, Unit("batches"), Meaning("a longer log becomes a snapshot")] = Field(
        default=2_000, ge=10, le=10_000, description="10..10000; a longer log becomes a snapshot"
    )

    def limits(self) -> StateLimits:
        """The store's share."""
        return StateLimits(self.call_timeout_s, self.load_timeout_s, self.ttl_s, self.poll_s)

    def writer(self) -> WriterLimits:
        """The write-behind's share."""
        return WriterLimits(self.queue_batches, self.queue_bytes, self.snapshot_batches, self.ttl_s)


class LogSettings(BaseModel):
    """Logs on stderr."""

    model_config = CLOSED

    level: Annotated[Literal["debug", "info", "warning", "error"], Meaning("lines below it are left out")] = Field(
        default="info", description="debug, info, warning or error"
    )
    format: Annotated[Literal["json", "text"], Meaning("one JSON object per line, or text to be read")] = Field(
        default="json", description="json or text"
    )
    access: Annotated[bool, Meaning("true: one line per HTTP request")] = Field(
        default=False, description="true: one line per HTTP request"
    )


class Settings(BaseModel):
    """The whole file. The environment overrides any key: KVROUTE_<SECTION>__<KEY>."""

    model_config = CLOSED

    state: Annotated[
        SecretStr,
        AfterValidator(_reachable_state),
        Meaning(
            "where what must outlive the process lies; memory://: nowhere",
            allowed="memory://, or redis://, rediss:// or redis+cluster:// and [user:password@]host:port[/db]",
        ),
    ] = Field(
        default=SecretStr("memory://"),
        description="memory:// alone, or after another beginning [user:password@]host:port[/db]",
    )
    state_tokens: Annotated[
        bool, Meaning("false: the state of SGLang instances, which holds prompt tokens, is not stored")
    ] = Field(
        default=True, description="false: the state of SGLang instances, which holds prompt tokens, is not stored"
    )
    state_store: StateSettings = Field(default_factory=StateSettings, description="times and bounds of the state store")
    hash: HashSettings = Field(default_factory=HashSettings, description="algorithm, seed, policy, verify")
    models: dict[ModelName, ModelSettings] = Field(default_factory=dict, description="model name to {hash: {...}}")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="token")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="sizes and times")
    router: RouterSection = Field(default_factory=RouterSection, description="load guard, spread and memory")
    listener: ListenerSection = Field(default_factory=ListenerSection, description="event streams")
    polling: PollingSettings = Field(default_factory=PollingSettings, description="intervals in seconds")
    availability: AvailabilitySettings = Field(
        default_factory=AvailabilitySettings, description="silence, ejection and trials"
    )
    log: LogSettings = Field(default_factory=LogSettings, description="level, format, access")
    instances: list[InstanceSettings] = Field(default_factory=list, description="a list of instances")

    def hash_for(self, model: str) -> HashSettings:
        """The identity asked of a model's vLLM instances: its own keys over the fleet's."""
        own = self.models.get(model, ModelSettings()).hash
        return self.hash.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, tree: object) -> object:
        """A section whose keys are all commented out is null in YAML: it means the defaults."""
        return {key: value for key, value in tree.items() if value is not None} if isinstance(tree, dict) else tree

    @field_validator("instances")
    @classmethod
    def _ids_differ(cls, instances: list[InstanceSettings]) -> list[InstanceSettings]:
        first: dict[str, int] = {}
        for position, instance in enumerate(instances):
            if (earlier := first.setdefault(instance.id, position)) != position:
                raise ValueError(f"{earlier} and {position} have the same id; every id must be unique")
        return instances

    @model_validator(mode="after")
    def _derivable_for_every_model(self) -> Self:
        for model in self.models:
            HashSettings.model_validate(self.hash_for(model).model_dump())
        return self

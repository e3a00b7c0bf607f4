"""What an engine says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NO_REPLAY = "no replay endpoint, so missed events cannot be fetched: add replay_endpoint to --kv-events-config"
"""A warning to operators, the same for both engines."""


class EngineFacts(NamedTuple):
    """Everything learnt from one engine over HTTP. None, or an empty mapping: the engine did not say.

    `events` and `replay` are endpoints per data-parallel rank, ready to be dialled. `block_size` is in tokens (vLLM: of
    the command line or backend, without context parallelism; events know better). `fingerprint` differs between
    processes of the same engine. `adapters` are LoRA names with their paths. `dynamo_format` tells whether SGLang's
    event hashes carry the namespace. `warning` says in words what an operator should change. `hash_algorithm` is what
    vLLM's metrics say of `--prefix-caching-hash-algo`, in characters that can be shown. `models` are the base model's
    names that are listed, `roots` where what is behind each came from, a path or a name.

    Ranks are numbered from 0 here. `ranks` are the engine's own numbers of them, rising: vLLM's do not begin at 0 on a
    node of a hybrid or external load balancing deployment. Empty: 0 and on. `unauthorized`: some questions were
    answered 401 or 403, so that what is missing here may be told with another key; `warning` says so.
    `adapters_loadable`: vLLM lists adapters and takes others at run time, so the list may be another at any moment.
    """

    version: str | None
    events: dict[int, str]
    replay: dict[int, str]
    topic: str | None
    block_size: int | None
    dp_size: int | None
    prefix_match_unit: int | None
    fingerprint: str | None
    adapters: dict[str, str]
    models: tuple[str, ...]
    dynamo_format: bool | None
    warning: str | None
    hash_algorithm: str | None = None
    roots: Mapping[str, str] = MappingProxyType({})
    ranks: tuple[int, ...] = ()
    unauthorized: bool = False
    adapters_loadable: bool = False

    def own_rank(self, rank: int) -> int:
        """The engine's number of a rank."""
        return self.ranks[rank] if rank < len(self.ranks) else rank

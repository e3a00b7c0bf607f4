"""Whether a vLLM worker hashes as its fleet does, and which adapter its blocks belong to: told by its first blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import structlog

from app.adapters import STRANGER, AdapterLabels
from app.instance import UNVERIFIED, AdapterDoubt, Instance, TrackedWorker
from engine.identity import HashReport, ModelIdentity
from index.block_hash import HashIdentity
from index.event import BlockStored, EventBatch, KVEvent
from index.index import Index
from index.worker import Medium, Trust

_log = structlog.stdlib.get_logger("kvroute.hash")

JUDGED_FAILURES = 4
JUDGED_EVERY = 256
"""A failed identity check tries every candidate; after some failures only every so many roots are looked at again."""


class HashCheck:
    """One worker's check, from the start of its process on."""

    def __init__(
        self,
        instance: Instance,
        tracked: TrackedWorker,
        index: Index,
        adapters: AdapterLabels,
        *,
        identity: ModelIdentity,
        enforce: bool,
        resync: Callable[[str], object],
        look_again: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._tracked = tracked
        self._index = index
        self._adapters = adapters
        self._identity = identity
        self._enforce = tracked.enforced = enforce
        self._resync = resync
        self._look_again = look_again
        self._failures = 0
        self._roots = 0
        self._contradicted = False
        self._misfiled: dict[tuple[str, str], int] = {}

    def new_process(self) -> None:
        """Everything learnt from the process is open again."""
        self._failures = self._roots = 0
        self._contradicted = False
        self._tracked.hash, self._tracked.refused, self._tracked.advice = UNVERIFIED, False, None

    @property
    def settled(self) -> bool:
        """Whether `judged` has nothing more to say about the base model's blocks."""
        return self._tracked.hash.status == "verified" or self._contradicted

    def contradicted(self) -> None:
        """A stored block has a wrong hash, by the identity of the worker's others. Open again in its next process.

        Until then no root block outweighs it: what is asked for again would hold the wrong one too.
        """
        identity = self._tracked.hash.identity
        if self._contradicted or identity is None:
            return
        self._contradicted = True
        report = self._identity.contradicted(identity)
        _log.error("a stored block's hash does not follow from its tokens", **self._tracked.names, advice=report.advice)
        self._mismatch(report)

    def restored(self, identity: HashIdentity, shared: bool) -> bool:
        """The worker's hashes were verified before, in the process that it resumes; `shared`: as the fleet's.

        False: they are not the fleet's any more; what is held must go, and everything is asked for again.
        """
        if shared and not self._identity.accept(identity):
            self._resync("identity")
            return False
        status: Literal["verified", "mismatch"] = "verified" if shared else "mismatch"
        self._tracked.hash = HashReport(status, identity, self._identity.expected)
        return True

    def cleared(self) -> None:
        """Nothing is filed any more."""
        self._misfiled.clear()

    def judged(self, batch: EventBatch) -> EventBatch:
        """Look at the batch's first blocks; returns it with adapters told apart by the path they were loaded from."""
        relabelled: list[KVEvent] | None = None
        for position, event in enumerate(batch.events):
            if not isinstance(event, BlockStored) or event.parent is not None:
                continue
            if event.lora_name is None:
                self._judge_base(event)
                continue
            label = self._label(event, event.lora_name)
            if label != event.lora_name:
                relabelled = relabelled if relabelled is not None else list(batch.events)
                relabelled[position] = _relabelled(event, label)
        return batch if relabelled is None else batch._replace(events=relabelled)

    def facts_learnt(self) -> None:
        """Adapters may have other paths now. Blocks that would be filed elsewhere today are fetched again.

        The metrics may name an algorithm by which a mismatch would be explained otherwise: the next root is looked at.
        """
        if self._tracked.hash.status == "mismatch" and self._tracked.hash.identity is None:
            self._failures = 0
        model, adapters = self._instance.settings.model, self._instance.adapters
        for (name, filed), known in self._misfiled.items():
            label = self._adapters.label(model, name, adapters.get(name))
            guessed_wrong = filed == name and label != name
            if guessed_wrong or (filed != name and len(self._adapters.paths(model, name)) > known):
                self._misfiled.clear()
                self._resync("adapter")
                return

    # The base model's blocks

    def _judge_base(self, event: BlockStored) -> None:
        if self.settled or not self._due():
            return
        report = self._identity.judge(event, {}, self._instance.facts.hash_algorithm)
        if report is not None:
            self._take(report)

    def _due(self) -> bool:
        self._roots += 1
        return self._failures < JUDGED_FAILURES or self._roots % JUDGED_EVERY == 0

    def _take(self, report: HashReport) -> None:
        if self._contradicted:
            return
        if report.status == "verified":
            self._verified(report)
        else:
            self._mismatch(report)

    def _verified(self, report: HashReport) -> None:
        tracked, identity = self._tracked, report.identity
        assert identity is not None
        tracked.hash = report
        self._index.identify(tracked.worker, identity, shared=True)
        _log.info("hash identity verified", **self._tracked.names, algorithm=identity.algorithm, seed=identity.seed)
        if tracked.refused:
            tracked.refused, tracked.advice, tracked.trust = False, None, Trust.PARTIAL
            self._resync("identity")

    def _mismatch(self, report: HashReport) -> None:
        tracked = self._tracked
        self._failures += 1
        first = tracked.hash.status != "mismatch"
        if first or report.identity is not None or tracked.hash.identity is None:
            tracked.hash = report
            tracked.advice = report.advice if tracked.refused else None
        if report.identity is not None and not self._enforce:
            self._index.identify(tracked.worker, report.identity, shared=False)
        if first and self._enforce:
            self._index.restart(tracked.worker)
            tracked.refused, tracked.trust, tracked.advice = True, Trust.NONE, report.advice
            _log.error(
                "worker refused: its block hashes are not the fleet's", **self._tracked.names, advice=report.advice
            )

    # Adapters' blocks

    def _label(self, event: BlockStored, name: str) -> str:
        """The namespace of an adapter's blocks: by the path they were hashed with, as far as that can be told."""
        path = self._instance.adapters.get(name)
        label = self._adapters.label(self._instance.settings.model, name, path)
        if path is None:
            self._misfile(name, label)
            return label
        if self._tracked.refused or not _pairs(event) or self._hashes_say_nothing:
            return label
        proven = self._proven_path(event, name, path)
        if proven != path and (proven is not None or self._is_conclusive(event)):
            self._instance.doubts[name] = AdapterDoubt(time.monotonic(), path)
            self._look_again()
        if proven is not None:
            return self._adapters.label(self._instance.settings.model, name, proven)
        self._misfile(name, name + STRANGER)
        self._look_again()
        return name + STRANGER

    def _is_conclusive(self, event: BlockStored) -> bool:
        """Whether only an unknown path can be why an adapter's first block was not proven."""
        keys = event.extra_keys[0] if event.extra_keys else None
        texts = all(isinstance(key, str) for key in keys or ())
        return self._tracked.hash.status == "verified" and event.medium == Medium.GPU and texts

    @property
    def _hashes_say_nothing(self) -> bool:
        """Whether no path could be proven: the worker's seed is one that nobody can name."""
        return not self._enforce and self._tracked.hash.identity is None

    def _proven_path(self, event: BlockStored, name: str, path: str) -> str | None:
        """The path that the block was hashed with, of those known; it proves the worker's identity as well."""
        known = self._adapters.paths(self._instance.settings.model, name)
        for tried in dict.fromkeys((path, *known)):
            report = self._identity.judge(event, {name: tried}, self._instance.facts.hash_algorithm)
            if report is not None and report.identity is not None:
                if report.identity != self._tracked.hash.identity:
                    self._take(report)
                return tried
        return None

    def _misfile(self, name: str, label: str) -> None:
        self._misfiled[name, label] = len(self._adapters.paths(self._instance.settings.model, name))


def _pairs(event: BlockStored) -> bool:
    """Whether the event's first hash is that of its first tokens."""
    return bool(event.block_hashes) and len(event.block_hashes) * event.block_size * 4 == len(event.tokens)


def _relabelled(event: BlockStored, label: str) -> BlockStored:
    """The event under another adapter name, also where its extra keys repeat it."""
    name, extras = event.lora_name, event.extra_keys
    if extras is not None:
        extras = [(label, *extra[1:]) if extra and extra[0] == name else extra for extra in extras]
    return event._replace(lora_name=label, extra_keys=extras)

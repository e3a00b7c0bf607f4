"""Which SGLang workers loaded an adapter at their start, and which loaded it later, through the API.

An adapter given with `--lora-paths` has an id that follows from its name and path; every load through the API, also one
after an unload, gives it a random one that nothing shows (sglang/srt/lora/lora_registry.py, 0.5.22). What was stored
under a former id stays in the cache and is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_FORMER = 8_192  # adapters loaded again, and their former hidden namespaces, that are remembered; the oldest are not


class AdapterLoads:
    """Of one pool: masks of slots, by adapter name."""

    def __init__(self) -> None:
        self.alone = 0
        """Workers declared to get no request with both an adapter and an extra_key."""
        self.mixed = 0
        """Workers declared to get such requests."""
        self._fixed: dict[str, int] = {}
        self._again: dict[str, int] = {}
        self._former: dict[str, int] = {}
        self._doubted: dict[str, int] = {}

    def doubt(self, slot: int, lora: str) -> None:
        """A root came that the load known of does not explain: of another load, or of a request with an extra_key."""
        self._doubted[lora] = self._doubted.pop(lora, 0) | 1 << slot
        while len(self._doubted) > MAX_FORMER:
            del self._doubted[next(iter(self._doubted))]

    def is_doubted(self, slot: int, lora: str) -> bool:
        """Whether what the worker holds of the adapter may be of a load before the present one."""
        return bool(self._doubted.get(lora, 0) >> slot & 1)

    def fixed(self, lora: str) -> int:
        """Workers that sent a root under the id that follows from the adapter's path: what it was loaded with first."""
        return self._fixed.get(lora, 0)

    def fixed_names(self, slot: int) -> set[str]:
        """The adapters of which the worker sent such roots."""
        return {lora for lora, slots in self._fixed.items() if slots >> slot & 1}

    def again(self, lora: str) -> int:
        """Workers that unloaded it, or loaded it through the API: the id that follows from its path is of no use."""
        return self._again.get(lora, 0)

    def is_former(self, slot: int, namespace: str) -> bool:
        """Whether a hidden namespace is of the adapter as it was before the worker loaded it again."""
        return bool(self._former.get(namespace, 0) >> slot & 1)

    def names_again(self, slot: int) -> list[str]:
        """Every adapter that the worker loaded again."""
        return sorted(lora for lora, slots in self._again.items() if slots >> slot & 1)

    def declare(self, slot: int, extra_keys: bool | None) -> None:
        """Whether it gets requests with both an adapter and an extra_key; None: nobody says."""
        self.alone, self.mixed = self.alone & ~(1 << slot), self.mixed & ~(1 << slot)
        if extra_keys:
            self.mixed |= 1 << slot
        elif extra_keys is not None:
            self.alone |= 1 << slot

    def prove(self, slot: int, lora: str) -> None:
        """A root came under the id that follows from the path."""
        self._fixed[lora] = self.fixed(lora) | 1 << slot

    def load_again(self, slot: int, lora: str, former: Sequence[str] = ()) -> bool:
        """The worker has it through the API from now on, if at all; `former`: the hidden namespaces it had before.

        Whether that is news.
        """
        before = self._again.pop(lora, 0)
        self._again[lora] = before | 1 << slot
        while len(self._again) > MAX_FORMER:
            del self._again[next(iter(self._again))]
        self._fixed, self._doubted = _without(self._fixed, slot, lora), _without(self._doubted, slot, lora)
        for namespace in former:
            self._former[namespace] = self._former.pop(namespace, 0) | 1 << slot
        while len(self._former) > MAX_FORMER:
            del self._former[next(iter(self._former))]
        return bool(former) or not before >> slot & 1

    def cleared(self, slot: int) -> None:
        """The worker holds nothing any more."""
        self._former, self._doubted = _without(self._former, slot), _without(self._doubted, slot)

    def forget(self, slot: int) -> None:
        """The worker is gone, or is another process now."""
        self.cleared(slot)
        self.declare(slot, None)
        self._fixed, self._again = _without(self._fixed, slot), _without(self._again, slot)


def _without(masks: dict[str, int], slot: int, name: str | None = None) -> dict[str, int]:
    """The masks without a worker: under one name, or under all."""
    if name is not None and name not in masks:
        return masks
    kept = {one: slots & ~(1 << slot) if name in (None, one) else slots for one, slots in masks.items()}
    return {one: slots for one, slots in kept.items() if slots}

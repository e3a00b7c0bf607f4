"""What the settings ask of one model's hash identity."""

from __future__ import annotations

from typing import Literal, NamedTuple

from index.block_hash import ALGORITHMS, DEFAULT_SEED, HashIdentity


class HashPolicy(NamedTuple):
    """One model's settings: `algorithm` is "auto" or a name, `seed` is "auto", "none" (the default text) or a text."""

    algorithm: str = "auto"
    seed: str = "auto"
    policy: Literal["enforce", "translate"] = "enforce"

    @property
    def seeds(self) -> tuple[str | None, ...]:
        """The seed that is named, as a tuple of one, or of none under "auto"; None is the engine's default text."""
        if self.seed == "auto":
            return ()
        return (None,) if self.seed in ("none", DEFAULT_SEED) else (self.seed,)

    def stated(self) -> HashIdentity | None:
        """The identity, where both parts are named. ValueError for one that no engine can have."""
        if self.algorithm not in ("auto", *ALGORITHMS):
            raise ValueError(f"unknown hash algorithm {self.algorithm!r}: one of auto, {', '.join(ALGORITHMS)}")
        if self.seeds and not nameable(self.algorithm, self.seeds[0]):
            raise ValueError(f"{self.algorithm} without PYTHONHASHSEED is random in every process: give a seed")
        return HashIdentity(self.algorithm, self.seeds[0]) if self.seeds and self.algorithm != "auto" else None

    def admits(self, identity: HashIdentity) -> bool:
        """Whether an engine with this identity does as the settings ask."""
        return self.algorithm in ("auto", identity.algorithm) and (not self.seeds or identity.seed == self.seeds[0])


def nameable(algorithm: str, seed: str | None) -> bool:
    """Whether an engine with these two has a NONE_HASH that can be known; without a seed xxhash draws one."""
    return seed is not None or not algorithm.startswith("xxhash")

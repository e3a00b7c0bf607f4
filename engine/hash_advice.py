"""What is wrong with a worker's block hashes and what to change, in words. Names only what is possible there."""

from __future__ import annotations

from engine.hash_policy import HashPolicy, nameable
from index.block_hash import ALGORITHMS, HashIdentity
from index.event import EngineHash

_DIGEST_BYTES = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}


def mismatch_advice(
    wire: EngineHash,
    told: str | None,
    found: HashIdentity | None,
    expected: HashIdentity | None,
    settings: HashPolicy,
) -> str:
    """On an engine whose root block's hash `wire` is not the model's.

    `told` is the algorithm that the engine's metrics name, None where they name none; `found` the identity that derives
    the hash, None where no known one does; `expected` the model's, None while not known.
    """
    possible = _possible(wire, told)
    seen = f"block hashes are {_words(found)}" if found else _unknown(possible, told)
    if expected:
        return f"{seen}, the fleet uses {_words(expected)}: {_remedy(found, expected, settings)}"
    wanted = _wanted(told if found is None and told in possible else None, settings)
    if found:
        return f"{seen}, the settings ask for {_asked(settings)}: {_remedy(found, wanted, settings)}"
    return f"{seen}: start every engine of this model with {_flags(wanted)}, or state the seed they have in hash.seed"


def contradiction_advice(identity: HashIdentity) -> str:
    """On an engine that hashes by `identity` and has announced a block with another hash."""
    return (
        f"the hash of a stored block does not follow from its tokens by {_words(identity)}, as those of this "
        "engine's other blocks do: its events are changed on their way, or two engines publish at one endpoint; "
        "restart it when that is mended (hash.verify: roots looks at first blocks alone)"
    )


def _possible(wire: EngineHash, told: str | None) -> tuple[str, ...]:
    """The algorithms that can have made the hash. Its length outweighs what the engine tells."""
    if told is not None and told not in ALGORITHMS:
        return ()
    fitting = tuple(name for name in ALGORITHMS if not isinstance(wire, bytes) or len(wire) == _DIGEST_BYTES[name])
    return (told,) if told in fitting else fitting


def _unknown(possible: tuple[str, ...], told: str | None) -> str:
    if told is not None and told not in ALGORITHMS:
        return f"block hashes are {told} by this engine's metrics, which is none of {', '.join(ALGORITHMS)}"
    fit = "block hashes fit no known algorithm and seed"
    if possible == (told,):
        fit = f"block hashes are {told} by this engine's metrics and fit no known seed"
    return f"{fit} ({_causes(possible)})" if possible else fit


def _causes(possible: tuple[str, ...]) -> str:
    other = "another PYTHONHASHSEED, compared as text"
    drawn = [name for name in possible if name.startswith("xxhash")]
    if not drawn:
        return f"{other}, or none in a release that then draws a random seed"
    doubt = "" if len(drawn) == len(possible) else "perhaps "
    name = drawn[0] if len(possible) == 1 else "xxhash"
    return f"{doubt}{name} without PYTHONHASHSEED, which is random in every process, or {other}"


def _wanted(running: str | None, settings: HashPolicy) -> HashIdentity:
    """What the settings name; of the rest what the engine runs with, else what suits every fleet."""
    seed = (*settings.seeds, "0")[0]
    if settings.algorithm != "auto":
        return HashIdentity(settings.algorithm, seed)
    return HashIdentity(running if running is not None and nameable(running, seed) else "sha256_cbor", seed)


def _remedy(found: HashIdentity | None, wanted: HashIdentity, settings: HashPolicy) -> str:
    text = f"restart this engine with {_flags(wanted)}"
    if found is None and wanted.seed is None:
        text += " (releases that draw a random seed then need one PYTHONHASHSEED on the whole fleet)"
    return f"its blocks are kept apart; to share them {text}" if settings.policy == "translate" else text


def _words(identity: HashIdentity) -> str:
    return f"{identity.algorithm} with {_seed_words(identity.seed)}"


def _asked(settings: HashPolicy) -> str:
    seeds = [_seed_words(seed) for seed in settings.seeds]
    return " with ".join([*([] if settings.algorithm == "auto" else [settings.algorithm]), *seeds])


def _flags(identity: HashIdentity) -> str:
    seed = "without PYTHONHASHSEED" if identity.seed is None else _seed_words(identity.seed)
    return f"--prefix-caching-hash-algo {identity.algorithm} and {seed}"


def _seed_words(seed: str | None) -> str:
    if seed is None:
        return "PYTHONHASHSEED not set"
    return f"PYTHONHASHSEED={seed}" if seed else 'PYTHONHASHSEED=""'

"""A root block proves its engine's hash identity, and a wrong identity is told in words that can be acted on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hash_policy import HashPolicy
from engine.identity import HashReport, ModelIdentity
from engine.wire import decode
from index.block_hash import ALGORITHMS, HashIdentity, block_hash, chain, none_hash, wire_uint64
from index.event import BlockStored, EngineHash
from index.worker import EngineKind, Medium
from tests.engine.root_blocks import advice_of, root_by, root_of_unknown_seed, settings_of, stored

STREAMS = Path(__file__).parents[1] / "golden" / "vllm" / "streams"
SINGLE_GROUP = ["bytes_hash_dp1_topic", "eagle", "report_full", "sched_sync", "sha256", "sha256_cbor", "xxhash_cbor"]
HYBRID = ["hybrid_swa_default", "sched_mamba_default"]
PATHS = ({"sql": "/adapters/sql-v1", "chat": "/adapters/chat"}, {"sql": "/adapters/sql-v2", "chat": "/adapters/chat"})
SEEDS = [None, "0", "42", "random", ""]
NAMEABLE = [HashIdentity(a, s) for a in ALGORITHMS for s in SEEDS if s is not None or not a.startswith("xxhash")]


@cache
def identity_of(stream: str) -> HashIdentity:
    meta = json.loads((STREAMS / stream / "meta.json").read_text())
    return HashIdentity(meta["algo"], meta["PYTHONHASHSEED"])


@cache
def roots_of(stream: str) -> list[BlockStored]:
    """The store events with hashes that begin a prompt."""
    return [e for e in stores_of(stream) if e.parent is None and e.block_hashes]


def stores_of(stream: str) -> Iterator[BlockStored]:
    for line in (STREAMS / stream / "event_frames.jsonl").read_text().splitlines():
        payload = bytes.fromhex(json.loads(line)["frames"][2])
        for event in decode(payload, EngineKind.VLLM).events:
            if isinstance(event, BlockStored):
                yield event


# Recorded streams


@pytest.mark.parametrize("stream", SINGLE_GROUP + HYBRID)
def test_every_recorded_root_verifies_with_the_stated_identity(stream: str) -> None:
    model = ModelIdentity(settings_of(identity_of(stream)), None)
    verified = HashReport("verified", identity_of(stream), identity_of(stream))
    roots = [root for root in roots_of(stream) if len(root.block_hashes) * root.block_size * 4 == len(root.tokens)]
    assert len(roots) >= 5
    for root in roots:
        assert verified in [model.judge(root, paths) for paths in PATHS]


@pytest.mark.parametrize("stream", SINGLE_GROUP + HYBRID)
def test_the_first_recorded_root_sets_the_identity_when_nothing_is_stated(stream: str) -> None:
    model = ModelIdentity(HashPolicy(), None)
    assert model.expected is None
    judged = [report for root in roots_of(stream) if (report := model.judge(root, PATHS[0]))]
    assert model.expected == identity_of(stream)
    assert {report.status for report in judged} == {"verified"}


@pytest.mark.parametrize("stream", SINGLE_GROUP + HYBRID)
def test_every_recorded_root_is_a_mismatch_in_a_fleet_of_another_identity(stream: str) -> None:
    expected = HashIdentity("sha256_cbor", "1")
    model = ModelIdentity(settings_of(expected), None)
    reports = [model.judge(root, paths) for root in roots_of(stream) for paths in PATHS]
    judged = {report[:3] for report in reports if report}
    assert judged == {("mismatch", identity_of(stream), expected)}


@pytest.mark.parametrize("stream", ["bytes_hash_dp1_topic", "sha256", "sched_sync"])
def test_a_recorded_adapter_root_says_nothing_without_the_adapters_path(stream: str) -> None:
    model = ModelIdentity(settings_of(identity_of(stream)), None)
    adapters = [root for root in roots_of(stream) if root.lora_name]
    assert adapters
    assert [model.judge(root, {}) for root in adapters] == [None] * len(adapters)
    wrong = {"sql": "/elsewhere", "chat": "/elsewhere"}
    assert [model.judge(root, wrong) for root in adapters] == [None] * len(adapters)


@pytest.mark.parametrize("stream", SINGLE_GROUP)
def test_events_that_begin_no_prompt_say_nothing(stream: str) -> None:
    model = ModelIdentity(HashPolicy(), None)
    later = [event for event in stores_of(stream) if event.parent is not None]
    assert len(later) > 20
    assert {model.judge(event, PATHS[0]) for event in later} == {None}
    assert model.expected is None


# What an event must be to count


@pytest.mark.parametrize(
    "change",
    [{"parent": 7}, {"block_hashes": []}, {"block_size": 0}, {"block_size": 2}, {"bigrams": True}, {"tokens": b""}],
)
def test_an_event_whose_hashes_do_not_pair_with_a_first_block_says_nothing(change: dict[str, Any]) -> None:
    event = root_by(HashIdentity("sha256", "7"))
    model = ModelIdentity(settings_of(HashIdentity("sha256", "0")), None)
    assert model.judge(event, {}) is not None
    assert model.judge(event._replace(**change), {}) is None


@pytest.mark.parametrize(
    "fields",
    [{"lora_name": "sql"}, {"extra_keys": [(b"digest",)]}, {"medium": Medium.CPU}],
)
def test_a_failure_with_another_possible_cause_says_nothing(fields: dict[str, Any]) -> None:
    event = root_of_unknown_seed()
    model = ModelIdentity(HashPolicy("sha256", "0"), None)
    assert model.judge(event, {"sql": "/p"}) is not None
    assert model.judge(event._replace(**fields), {"sql": "/p"}) is None


def test_prompt_embeddings_verify_where_the_event_shows_the_hashed_tokens() -> None:
    identity = HashIdentity("sha256_cbor", "0")
    event = root_by(identity, (("prompt_embeds", b"digest"),), (b"digest",))
    assert ModelIdentity(settings_of(identity), None).judge(event, {}) == HashReport("verified", identity, identity)


@pytest.mark.parametrize("identity", NAMEABLE)
@pytest.mark.parametrize(
    ("shown", "lora"),
    [
        (("salt",), None),
        (("sql",), "sql"),
        (("sql", ("img", 1), "salt"), "sql"),
        ((("img", 1), ("img", 3)), None),
    ],
)
def test_releases_that_hashed_untagged_keys_verify_too(identity: HashIdentity, shown: Any, lora: str | None) -> None:
    event = root_by(identity, shown, shown, lora_name=lora)
    for paths in ({}, {"sql": "/p"}):
        report = ModelIdentity(HashPolicy(), None).judge(event, paths)
        assert report == HashReport("verified", identity, identity)


def test_an_adapter_root_of_a_release_that_sends_no_extra_keys_verifies() -> None:
    identity = HashIdentity("sha256", "0")
    for hashed in (("sql",), (("lora", "sql", "/p"),)):
        event = root_by(identity, hashed, lora_name="sql")._replace(extra_keys=None)
        report = ModelIdentity(settings_of(identity), None).judge(event, {"sql": "/p"})
        assert report == HashReport("verified", identity, identity)


@pytest.mark.parametrize(("block_size", "unit"), [(64, 16), (16, 1), (1056, 32), (4096, 1024)])
@pytest.mark.parametrize("lora", [None, "sql"])
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_a_coarse_block_verifies_by_the_fine_hash_at_its_end(
    block_size: int, unit: int, lora: str | None, salt: str | None
) -> None:
    identity = HashIdentity("xxhash_cbor", "42")
    adapter: tuple[Any, ...] = (("lora", "sql", "/p"),) if lora else ()
    salted: tuple[Any, ...] = (*adapter, ("cache_salt", salt)) if salt else adapter
    tokens = list(range(block_size))
    extras = [salted or None] + [adapter or None] * (block_size // unit - 1)
    digest = chain(identity, tokens, unit, extras)[-1]
    shown = tuple(key for key in (lora, salt) if key) or None
    event = stored([wire_uint64(digest)], tokens, block_size, [shown], lora_name=lora)
    model = ModelIdentity(settings_of(identity) if lora else HashPolicy(), None)
    assert model.judge(event, {"sql": "/p"}) == HashReport("verified", identity, identity)
    assert model.judge(event, {"sql": "/p"}) == HashReport("verified", identity, identity)


def test_engines_of_one_model_may_differ_in_their_hash_unit() -> None:
    identity = HashIdentity("sha256", "0")
    tokens = list(range(64))
    model = ModelIdentity(settings_of(identity), None)
    for unit in (16, 64, 32, 16):
        event = stored([wire_uint64(chain(identity, tokens, unit)[-1])], tokens, 64)
        report = model.judge(event, {})
        assert report is not None
        assert report.status == "verified"


def test_an_image_in_a_block_known_to_hold_several_hash_units_says_nothing_when_it_fails() -> None:
    identity = HashIdentity("sha256", "0")
    tokens = list(range(64))
    model = ModelIdentity(settings_of(identity), None)
    image = root_by(HashIdentity("sha256", "7"), (("mm", "img", 20),), (("img", 20),), block_size=64)
    before = model.judge(image, {})
    assert before is not None
    assert before.status == "mismatch"
    model.judge(stored([wire_uint64(chain(identity, tokens, 16)[-1])], tokens, 64), {})
    assert model.judge(image, {}) is None


def test_a_block_too_long_to_search_is_judged_as_one_unit() -> None:
    identity = HashIdentity("sha256", "0")
    model = ModelIdentity(settings_of(identity), None)
    tokens = list(range(8192))
    for unit, status in ((8192, "verified"), (4096, "mismatch")):
        report = model.judge(stored([wire_uint64(chain(identity, tokens, unit)[-1])], tokens, 8192), {})
        assert report is not None
        assert report.status == status


# Settings


@pytest.mark.parametrize("identity", NAMEABLE)
@pytest.mark.parametrize("known", ["algorithm", "seed", "neither", "both"])
def test_what_is_not_stated_is_set_by_the_first_root_within_what_is(identity: HashIdentity, known: str) -> None:
    stated = settings_of(identity)
    settings = HashPolicy(
        stated.algorithm if known in ("algorithm", "both") else "auto",
        stated.seed if known in ("seed", "both") else "auto",
    )
    model = ModelIdentity(settings, None)
    assert model.expected == (identity if known == "both" else None)
    other = next(i for i in NAMEABLE if i.algorithm != identity.algorithm and i.seed != identity.seed)
    if known != "neither":
        report = model.judge(root_by(other), {})
        assert report is not None
        assert report[:3] == ("mismatch", other, identity if known == "both" else None)
    assert model.judge(root_by(identity), {}) == HashReport("verified", identity, identity)
    report = model.judge(root_by(other), {})
    assert report is not None
    assert report[:3] == ("mismatch", other, identity)


@pytest.mark.parametrize("algorithm", ["auto", "sha256"])
def test_a_stated_seed_outside_the_known_ones_is_found(algorithm: str) -> None:
    identity = HashIdentity("sha256", "31337")
    model = ModelIdentity(HashPolicy(algorithm, "31337"), None)
    assert model.judge(root_by(identity), {}) == HashReport("verified", identity, identity)


@pytest.mark.parametrize("algorithm", ["auto", "sha256"])
@pytest.mark.parametrize("seed", ["none", "vllm-none-hash"])
def test_the_default_text_and_its_name_mean_the_same(algorithm: str, seed: str) -> None:
    unset = HashIdentity("sha256", None)
    model = ModelIdentity(HashPolicy(algorithm, seed), None)
    assert model.judge(root_by(unset), {}) == HashReport("verified", unset, unset)


def test_the_routers_own_seed_is_one_of_the_known() -> None:
    identity = HashIdentity("xxhash", "31337")
    unaware, aware = ModelIdentity(HashPolicy(), None), ModelIdentity(HashPolicy(), "31337")
    report = unaware.judge(root_by(identity), {})
    assert report is not None
    assert report[:3] == ("mismatch", None, None)
    assert aware.judge(root_by(identity), {}) == HashReport("verified", identity, identity)


@pytest.mark.parametrize("settings", [HashPolicy("xxhash", "none"), HashPolicy("xxhash_cbor", "none")])
def test_xxhash_with_the_default_text_is_refused(settings: HashPolicy) -> None:
    with pytest.raises(ValueError, match="random in every process: give a seed"):
        ModelIdentity(settings, None)


@pytest.mark.parametrize("seed", ["auto", "0"])
def test_an_unknown_algorithm_is_refused(seed: str) -> None:
    with pytest.raises(ValueError, match="unknown hash algorithm 'md5'"):
        ModelIdentity(HashPolicy("md5", seed), None)


# B55 of the golden cases: the seed agrees but the algorithm does not; or no seed with a fast hash

B55 = {
    "B": (HashIdentity("sha256_cbor", "0"), "block hashes are sha256_cbor with PYTHONHASHSEED=0"),
    "C": (HashIdentity("sha256", None), "block hashes are sha256 with PYTHONHASHSEED not set"),
    "D": (None, "perhaps xxhash without PYTHONHASHSEED, which is random in every process"),
    "E": (None, "or another PYTHONHASHSEED, compared as text"),
}


@pytest.mark.parametrize("settings", [HashPolicy("auto", "0"), HashPolicy("sha256", "0"), HashPolicy()])
def test_one_engine_is_admitted_and_four_are_refused_each_with_its_reason(settings: HashPolicy) -> None:
    expected = HashIdentity("sha256", "0")
    model = ModelIdentity(settings, None)
    assert model.judge(root_by(expected), {}) == HashReport("verified", expected, expected)
    roots = {
        "B": root_by(HashIdentity("sha256_cbor", "0")),
        "C": root_by(HashIdentity("sha256", None)),
        "D": root_of_unknown_seed("xxhash"),
        "E": root_by(HashIdentity("sha256", "00")),
    }
    for name, (found, reason) in B55.items():
        report = model.judge(roots[name], {})
        assert report is not None
        assert report[:3] == ("mismatch", found, expected)
        assert reason in advice_of(report)
        assert "--prefix-caching-hash-algo sha256 and PYTHONHASHSEED=0" in advice_of(report)


# Any identity, any first block


@given(
    st.sampled_from(NAMEABLE),
    st.sampled_from(NAMEABLE),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=24),
    st.booleans(),
)
def test_a_root_verifies_exactly_in_the_fleet_of_its_own_identity(
    fleet: HashIdentity, engine: HashIdentity, tokens: list[int], whole: bool
) -> None:
    digest = block_hash(engine.algorithm, none_hash(engine), tokens, None)
    wire: EngineHash = digest if whole else int.from_bytes(digest[-8:], "big", signed=True)
    report = ModelIdentity(settings_of(fleet), None).judge(stored([wire], tokens, len(tokens)), {})
    assert report is not None
    assert report[:3] == ("verified" if engine == fleet else "mismatch", engine, fleet)

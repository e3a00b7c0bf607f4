"""A root block proves its engine's hash identity, and a wrong identity is told in words that can be acted on."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.hash_policy import HashPolicy
from engine.identity import HashReport, ModelIdentity
from engine.wire import decode
from index.block_hash import ALGORITHMS, BlockExtra, HashIdentity, block_hash, chain, none_hash, wire_uint64
from index.event import BlockStored, EngineHash
from index.worker import EngineKind, Medium

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


def settings_of(identity: HashIdentity, policy: Literal["enforce", "translate"] = "enforce") -> HashPolicy:
    return HashPolicy(identity.algorithm, "none" if identity.seed is None else identity.seed, policy)


def stored(
    hashes: list[EngineHash], tokens: list[int], block_size: int, extras: list[Any] | None = None, **fields: Any
) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent=fields.pop("parent", None),
        tokens=struct.pack(f"<{len(tokens)}I", *tokens),
        block_size=block_size,
        extra_keys=extras,
        **fields,
    )


def root_by(
    identity: HashIdentity, hashed: BlockExtra = None, shown: Any = None, block_size: int = 4, **fields: Any
) -> BlockStored:
    """A first block of an engine with this identity: extra keys as hashed and as shown in the event."""
    tokens = list(range(100, 100 + block_size))
    [digest] = chain(identity, tokens, block_size, [hashed])
    return stored([wire_uint64(digest)], tokens, block_size, [shown], **fields)


def root_of_unknown_seed(algorithm: str = "xxhash", whole: bool = False, **fields: Any) -> BlockStored:
    digest = block_hash(algorithm, b"\x01" * 16, [100, 101, 102, 103], None)
    return stored([digest if whole else wire_uint64(digest)], [100, 101, 102, 103], 4, **fields)


def advice_of(report: HashReport | None) -> str:
    assert report is not None
    assert report.advice is not None
    return report.advice


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


# Words


def test_the_advice_names_what_is_what_should_be_and_what_to_set() -> None:
    model = ModelIdentity(HashPolicy("sha256_cbor", "0"), None)
    assert advice_of(model.judge(root_by(HashIdentity("sha256", "42")), {})) == (
        "block hashes are sha256 with PYTHONHASHSEED=42, the fleet uses sha256_cbor with PYTHONHASHSEED=0: "
        "restart this engine with --prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0"
    )


def test_a_seed_is_compared_as_text() -> None:
    model = ModelIdentity(HashPolicy("sha256", "042"), None)
    assert advice_of(model.judge(root_by(HashIdentity("sha256", "42")), {})) == (
        "block hashes are sha256 with PYTHONHASHSEED=42, the fleet uses sha256 with PYTHONHASHSEED=042: "
        "restart this engine with --prefix-caching-hash-algo sha256 and PYTHONHASHSEED=042"
    )


def test_the_empty_and_the_missing_seed_are_told_apart() -> None:
    empty, unset = HashIdentity("sha256_cbor", ""), HashIdentity("sha256_cbor", None)
    assert advice_of(ModelIdentity(settings_of(unset), None).judge(root_by(empty), {})) == (
        'block hashes are sha256_cbor with PYTHONHASHSEED="", the fleet uses sha256_cbor with PYTHONHASHSEED not set: '
        "restart this engine with --prefix-caching-hash-algo sha256_cbor and without PYTHONHASHSEED"
    )
    assert 'and PYTHONHASHSEED=""' in advice_of(ModelIdentity(settings_of(empty), None).judge(root_by(unset), {}))


def test_an_unknown_seed_in_a_fleet_without_one_may_be_an_older_release() -> None:
    model = ModelIdentity(HashPolicy("sha256", "none"), None)
    assert advice_of(model.judge(root_of_unknown_seed("sha256"), {})).endswith(
        "restart this engine with --prefix-caching-hash-algo sha256 and without PYTHONHASHSEED "
        "(releases that draw a random seed then need one PYTHONHASHSEED on the whole fleet)"
    )


def test_whole_digests_of_xxhash_are_recognised_by_their_length() -> None:
    model = ModelIdentity(HashPolicy("sha256_cbor", "0"), None)
    long = advice_of(model.judge(root_of_unknown_seed("xxhash_cbor", whole=True), {}))
    assert "(xxhash without PYTHONHASHSEED, which is random in every process" in long
    assert "perhaps xxhash" in advice_of(model.judge(root_of_unknown_seed("xxhash_cbor"), {}))


# Only what is possible is named


FLEET = HashPolicy("sha256_cbor", "0")


def advice_on(root: BlockStored, told: str | None, settings: HashPolicy = FLEET) -> str:
    return advice_of(ModelIdentity(settings, None).judge(root, {}, told))


@pytest.mark.parametrize("told", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("whole", [False, True])
def test_an_engine_whose_metrics_name_sha256_is_not_told_of_xxhash(told: str, whole: bool) -> None:
    text = advice_on(root_of_unknown_seed(told, whole), told)
    assert text.startswith(
        f"block hashes are {told} by this engine's metrics and fit no known seed (another PYTHONHASHSEED, compared as "
        "text, or none in a release that then draws a random seed), the fleet uses sha256_cbor with PYTHONHASHSEED=0: "
    )
    assert "xxhash" not in text
    assert text.endswith("restart this engine with --prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0")


@pytest.mark.parametrize("told", ["xxhash", "xxhash_cbor"])
def test_an_engine_whose_metrics_name_xxhash_is_told_so_without_a_perhaps(told: str) -> None:
    assert advice_on(root_of_unknown_seed(told), told).startswith(
        f"block hashes are {told} by this engine's metrics and fit no known seed ({told} without PYTHONHASHSEED, which "
        "is random in every process, or another PYTHONHASHSEED, compared as text), "
    )


def test_a_whole_digest_of_sha256_is_not_said_to_be_xxhash() -> None:
    text = advice_on(root_of_unknown_seed("sha256", whole=True), None)
    assert text.startswith("block hashes fit no known algorithm and seed (another PYTHONHASHSEED, compared as text, or")
    assert "xxhash" not in text


def test_the_length_of_a_digest_outweighs_what_the_metrics_say() -> None:
    text = advice_on(root_of_unknown_seed("xxhash", whole=True), "sha256")
    assert "fit no known algorithm and seed (xxhash without PYTHONHASHSEED" in text
    assert "by this engine's metrics" not in text


def test_an_algorithm_that_is_none_of_the_known_is_named_as_the_cause() -> None:
    text = advice_on(root_of_unknown_seed(), "builtin")
    assert text == (
        "block hashes are builtin by this engine's metrics, which is none of sha256, sha256_cbor, xxhash, xxhash_cbor, "
        "the fleet uses sha256_cbor with PYTHONHASHSEED=0: "
        "restart this engine with --prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0"
    )


def test_a_digest_of_no_known_length_is_not_given_a_cause() -> None:
    root = root_of_unknown_seed()._replace(block_hashes=[b"\x01" * 20])
    assert advice_on(root, None).startswith("block hashes fit no known algorithm and seed, the fleet uses")


@pytest.mark.parametrize(
    ("told", "settings", "flags"),
    [
        ("sha256", HashPolicy(), "--prefix-caching-hash-algo sha256 and PYTHONHASHSEED=0"),
        ("xxhash", HashPolicy("auto", "9"), "--prefix-caching-hash-algo xxhash and PYTHONHASHSEED=9"),
        ("xxhash", HashPolicy("auto", "none"), "--prefix-caching-hash-algo sha256_cbor and without PYTHONHASHSEED"),
        ("xxhash", HashPolicy("sha256", "auto"), "--prefix-caching-hash-algo sha256 and PYTHONHASHSEED=0"),
        ("builtin", HashPolicy(), "--prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0"),
    ],
)
def test_an_engine_need_not_change_an_algorithm_that_nobody_asked_about(
    told: str, settings: HashPolicy, flags: str
) -> None:
    assert f"start every engine of this model with {flags}, or state" in advice_on(
        root_of_unknown_seed(), told, settings
    )


@pytest.mark.parametrize("told", [None, "sha256", "xxhash", "builtin"])
def test_what_is_told_does_not_decide_only_the_hash_does(told: str | None) -> None:
    identity = HashIdentity("sha256_cbor", "0")
    model = ModelIdentity(HashPolicy(), None)
    assert model.judge(root_by(identity), {}, told) == HashReport("verified", identity, identity)
    other = model.judge(root_by(HashIdentity("xxhash", "42")), {}, told)
    assert "block hashes are xxhash with PYTHONHASHSEED=42, the fleet uses" in advice_of(other)


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        (HashPolicy(), "--prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0"),
        (HashPolicy("sha256"), "--prefix-caching-hash-algo sha256 and PYTHONHASHSEED=0"),
        (HashPolicy("auto", "9"), "--prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=9"),
        (HashPolicy("auto", "none"), "--prefix-caching-hash-algo sha256_cbor and without PYTHONHASHSEED"),
    ],
)
def test_when_nothing_is_known_the_advice_is_to_seed_the_whole_fleet(settings: HashPolicy, flags: str) -> None:
    report = ModelIdentity(settings, None).judge(root_of_unknown_seed(), {})
    assert report is not None
    assert report[:3] == ("mismatch", None, None)
    assert f"start every engine of this model with {flags}, or state the seed" in advice_of(report)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [(HashPolicy("sha256_cbor"), "sha256_cbor"), (HashPolicy("auto", "0"), "PYTHONHASHSEED=0")],
)
def test_an_engine_outside_half_stated_settings_is_told_what_they_ask_for(settings: HashPolicy, asked: str) -> None:
    report = ModelIdentity(settings, None).judge(root_by(HashIdentity("sha256", "42")), {})
    assert advice_of(report) == (
        f"block hashes are sha256 with PYTHONHASHSEED=42, the settings ask for {asked}: "
        "restart this engine with --prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0"
    )


def test_under_translate_the_advice_says_that_nothing_must_be_changed() -> None:
    model = ModelIdentity(settings_of(HashIdentity("sha256", "0"), "translate"), None)
    assert "kept apart; to share them restart this engine" in advice_of(
        model.judge(root_by(HashIdentity("sha256", "42")), {})
    )


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

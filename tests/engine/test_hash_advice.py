"""What is said of a worker whose hashes are not the fleet's: what is, what should be, and only what is possible."""

from __future__ import annotations

import pytest

from engine.hash_policy import HashPolicy
from engine.identity import HashReport, ModelIdentity
from index.block_hash import HashIdentity
from index.event import BlockStored
from tests.engine.root_blocks import advice_of, root_by, root_of_unknown_seed, settings_of

FLEET = HashPolicy("sha256_cbor", "0")


def advice_on(root: BlockStored, told: str | None, settings: HashPolicy = FLEET) -> str:
    return advice_of(ModelIdentity(settings, None).judge(root, {}, told))


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

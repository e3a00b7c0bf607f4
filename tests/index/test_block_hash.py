"""Block hashes equal the engine's: every recorded vector, and what must hold for prompts nobody recorded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.block_hash import (
    ALGORITHMS,
    BlockExtra,
    HashIdentity,
    TaggedKey,
    block_hash,
    chain,
    extra_keys_of,
    none_hash,
    tag_extra_keys,
    wire_matches,
    wire_uint64,
)
from index.event import ExtraKey
from index.prompt import MultimodalItem

pytestmark = pytest.mark.usefixtures("core")

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "vllm" / "hash_vectors.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in VECTORS["cases"]}
PEERS = {name: json.loads((GOLDEN / "peers" / f"mooncake_hash_{name}.json").read_text()) for name in ALGORITHMS[:2]}
PEER_CASES = [(name, case) for name, peer in PEERS.items() for case in peer["cases"]]

identities = st.builds(
    HashIdentity, st.sampled_from(ALGORITHMS), st.sampled_from(["0", "42", "random", "", "042"])
) | st.sampled_from([HashIdentity("sha256", None), HashIdentity("sha256_cbor", None)])
token_ids = st.integers(0, 2**32 - 1)


def identity_of(key: str) -> HashIdentity:
    algorithm, _, seed = key.partition("|")
    return HashIdentity(algorithm, None if seed == "<unset>" else seed)


def hashed_tokens(case: dict[str, Any]) -> list[int]:
    tokens: list[int] = case["tokens"]
    return [0] * len(tokens) if case["hashed_token_ids_are_zero"] else tokens


def hashed_extras(case: dict[str, Any]) -> list[tuple[TaggedKey, ...] | None]:
    return [tuple(map(plain, keys)) if keys else None for keys in case["extra_keys_hashed"]]


def plain(key: Any) -> Any:
    """One extra key out of JSON: lists are tuples, {"hex": ...} is bytes."""
    if isinstance(key, dict):
        return bytes.fromhex(key["hex"])
    return tuple(map(plain, key)) if isinstance(key, list) else key


@pytest.mark.parametrize("key", VECTORS["results"])
def test_none_hash_is_the_digest_of_the_seed_text(key: str) -> None:
    assert none_hash(identity_of(key)).hex() == VECTORS["results"][key]["none_hash"]


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_xxhash_without_a_seed_has_no_none_hash(algorithm: str) -> None:
    with pytest.raises(ValueError, match="random in every process"):
        none_hash(HashIdentity(algorithm, None))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key", VECTORS["results"])
def test_chains_equal_the_engines(key: str, case: str) -> None:
    vector = CASES[case]
    digests = chain(identity_of(key), hashed_tokens(vector), vector["block_size"], hashed_extras(vector))
    assert [digest.hex() for digest in digests] == VECTORS["results"][key]["chains"][case]


@pytest.mark.parametrize("key", VECTORS["wire_uint64"])
def test_wire_hashes_are_the_last_eight_bytes(key: str) -> None:
    for case, wires in VECTORS["wire_uint64"][key].items():
        vector = CASES[case]
        digests = chain(identity_of(key), hashed_tokens(vector), vector["block_size"], hashed_extras(vector))
        assert [wire_uint64(digest) for digest in digests] == wires
        assert all(map(wire_matches, digests, wires))


@pytest.mark.parametrize("key", VECTORS["preimages_seed_0"])
def test_digests_are_those_of_the_engines_serialised_bytes(key: str) -> None:
    algorithm, name = key.split("|")
    identity = HashIdentity(algorithm, "0")
    preimages = [bytes.fromhex(entry["preimage"]) for entry in VECTORS["preimages_seed_0"][key]]
    digests = [none_hash(identity)]
    if name != "none_hash":
        vector = CASES[name]
        digests = chain(identity, hashed_tokens(vector), vector["block_size"], hashed_extras(vector))
    assert digests[: len(preimages)] == [hashlib.sha256(preimage).digest() for preimage in preimages]


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash"])
def test_pickle_sees_equal_identifiers_as_the_engine_does_whoever_made_the_objects(algorithm: str) -> None:
    name = "bs16_mm_same_id_twice_in_block"
    vector, expected = CASES[name], VECTORS["pickle_identity_trap_seed_0"][algorithm][name]
    identifier = "img-aa"
    apart = "".join(["img", "-aa"])
    assert identifier is not apart
    first: tuple[tuple[TaggedKey, ...], ...] = (
        (("mm", identifier, 1), ("mm", identifier, 6)),
        (("mm", identifier, 1), ("mm", apart, 6)),
        (("".join(["m", "m"]), identifier, 1), ("mm", identifier, 6)),
    )
    for keys in first:
        digests = chain(HashIdentity(algorithm, "0"), vector["tokens"], vector["block_size"], [keys, None, None])
        assert [digest.hex() for digest in digests] == expected["decoded_from_ipc"]
        assert [digest.hex() for digest in digests] != expected["same_python_object"]


@pytest.mark.parametrize("case", CASES)
def test_extra_keys_of_a_prompt_equal_the_engines(case: str) -> None:
    vector = CASES[case]
    extras, expected = vector["extras"], hashed_extras(vector)
    lora = (extras["lora"]["name"], extras["lora"]["path"]) if "lora" in extras else None
    embeds: Any = [keys[-1][-1] for keys in expected if keys] if "prompt_embeds" in extras else None
    items = [MultimodalItem(*item) for item in extras.get("mm", [])]
    length, salt = len(vector["tokens"]), extras.get("cache_salt")
    keys = extra_keys_of(length, vector["block_size"], lora=lora, cache_salt=salt, mm_items=items, embeds=embeds)
    assert keys == expected


@pytest.mark.parametrize("case", CASES)
def test_tagging_the_keys_of_an_event_gives_the_hashed_keys(case: str) -> None:
    vector = CASES[case]
    lora = vector["extras"].get("lora", {"name": None, "path": None})
    untagged = [tuple(map(plain, keys)) if keys else None for keys in vector["extra_keys_event"] or []]
    tagged = [tag_extra_keys(keys, lora["name"], lora["path"]) for keys in untagged]
    assert tagged == hashed_extras(vector)


@pytest.mark.parametrize(
    ("untagged", "lora_name", "tagged"),
    [
        (("sql",), "sql", (("lora", "sql", "/p"),)),
        (("sql",), None, (("cache_salt", "sql"),)),
        (("sql", "sql"), "sql", (("lora", "sql", "/p"), ("cache_salt", "sql"))),
        (None, "sql", (("lora", "sql", "/p"),)),
        ((), None, None),
        (("mm", ("mm", -3), b"d"), "mm", (("lora", "mm", "/p"), ("mm", "mm", -3), ("prompt_embeds", b"d"))),
    ],
)
def test_the_first_text_is_the_adapter_only_when_the_event_names_it(
    untagged: tuple[ExtraKey, ...] | None, lora_name: str | None, tagged: tuple[TaggedKey, ...] | None
) -> None:
    assert tag_extra_keys(untagged, lora_name, "/p") == tagged


@pytest.mark.parametrize("path", [None, "/adapters/\ud800"])
def test_an_adapter_without_a_usable_path_cannot_be_tagged(path: str | None) -> None:
    with pytest.raises(ValueError, match=r"not known|surrogates"):
        tag_extra_keys(("sql",), "sql", path)


@pytest.mark.parametrize("name", PEERS)
def test_none_hashes_equal_those_of_other_projects(name: str) -> None:
    for root in PEERS[name]["seed_roots"]:
        assert none_hash(HashIdentity(name, root["python_hash_seed"])).hex() == root["root_digest"]
    assert none_hash(HashIdentity(name, None)).hex() == PEERS[name]["derived_default_seed_root"]["root_digest"]


@pytest.mark.parametrize(("name", "case"), PEER_CASES, ids=[f"{n}-{c['name']}" for n, c in PEER_CASES])
def test_chains_equal_those_of_other_projects(name: str, case: dict[str, Any]) -> None:
    tokens = case.get("token_ids") or repeated(case["token_ids_repeat"])
    lora = case["lora_name"] or "".join(repeated(case.get("lora_name_repeat", {"value": "", "count": 0})))
    extras: list[BlockExtra] = []
    for number in range(len(tokens) // case["block_size"]):
        salt = case["cache_salt"] if number == 0 else None
        extras.append(tuple(key for key in (lora, salt) if key) or None)
    digests = chain(HashIdentity(name, "0"), tokens, case["block_size"], extras)
    assert [digest.hex() for digest in digests] == [block["digest"] for block in case["expected"]]
    assert all(wire_matches(d, int(b["projected_decimal"])) for d, b in zip(digests, case["expected"], strict=True))


def repeated(run: dict[str, Any]) -> list[Any]:
    return [run["value"]] * run["count"]


@given(identities, st.lists(token_ids, max_size=40), st.lists(token_ids, max_size=40), st.integers(1, 9))
def test_a_longer_prompt_begins_with_the_hashes_of_its_prefix(
    identity: HashIdentity, prefix: list[int], rest: list[int], block_size: int
) -> None:
    short, long = chain(identity, prefix, block_size), chain(identity, prefix + rest, block_size)
    assert long[: len(short)] == short
    assert len(long) == (len(prefix) + len(rest)) // block_size


@given(identities, st.lists(token_ids, min_size=8, max_size=8), st.integers(0, 7))
def test_another_token_changes_its_block_and_all_after_it(
    identity: HashIdentity, tokens: list[int], place: int
) -> None:
    other = [*tokens]
    other[place] ^= 1
    same = [a == b for a, b in zip(chain(identity, tokens, 2), chain(identity, other, 2), strict=True)]
    assert same == [number < place // 2 for number in range(4)]


@given(st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32))
def test_a_digest_matches_itself_in_every_wire_form(digest: bytes) -> None:
    unsigned = wire_uint64(digest)
    signed = int.from_bytes(digest[-8:], "big", signed=True)
    assert wire_matches(digest, digest)
    assert wire_matches(digest, unsigned)
    assert wire_matches(digest, signed)
    assert not wire_matches(digest, unsigned ^ 1)
    assert not wire_matches(digest, digest[:-1])


def test_different_serialisations_and_parents_differ() -> None:
    digests = {block_hash(a, p, [1, 2, 3, 4], None) for a in ALGORITHMS for p in (b"\0" * 32, b"\1" * 32)}
    assert len(digests) == 8

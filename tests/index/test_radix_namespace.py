"""Namespaces of the radix tree: by name when the hash is explained, by first page when it is not."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from index.event import BlockStored, EngineHash
from index.page_hash import namespaced, page_hashes, wire_int64
from index.radix_label import named
from index.radix_namespace import MAX_ALIKE, MAX_HIDDEN, NamespaceRequest, RadixNamespaces

PAGE = array("I", [5, 6]).tobytes()
PROMPT = array("I", [5, 6, 7]).tobytes()
ADAPTER = "0f" * 16


def wire(extra_key: str | None = None, cache_salt: str | None = None, *, dynamo: bool = True) -> int:
    plain = wire_int64(page_hashes(PAGE, 8, cache_salt)[0])
    return namespaced(plain, extra_key, cache_salt) if dynamo else plain


def root(first: EngineHash, cache_salt: str | None = None, lora_name: str | None = None) -> BlockStored:
    return BlockStored([first], None, PAGE, 2, lora_name=lora_name, cache_salt=cache_salt)


def filed(namespaces: RadixNamespaces, event: BlockStored, lora_ids: Sequence[str] = ()) -> str:
    return namespaces.of_root(0, event, lora_ids).namespace


def asked(namespaces: RadixNamespaces, prompt: bytes, request: NamespaceRequest, slot: int = 0) -> list[str]:
    """Everything in which a worker's blocks are looked for."""
    return [name for place in namespaces.places(prompt, request, 1 << slot) for name in place.names]


def verified(extra_keys: bool | None = None) -> RadixNamespaces:
    """`extra_keys`: whether a request may have both an adapter and an extra_key."""
    namespaces = RadixNamespaces(8)
    namespaces.loads.declare(0, extra_keys)
    assert filed(namespaces, root(wire())) == named(None, None)
    return namespaces


def test_a_salt_is_a_namespace_in_both_formats() -> None:
    namespaces = verified()
    for dynamo in (True, False):
        assert filed(namespaces, root(wire(None, "s", dynamo=dynamo), "s")) == named("s", None)
    assert asked(namespaces, PROMPT, NamespaceRequest(cache_salt="s")) == [named("s", None)]
    assert asked(namespaces, PROMPT, NamespaceRequest()) == [named(None, None)]


def test_an_extra_key_is_found_by_the_hash_of_the_first_page() -> None:
    namespaces = verified()
    name = filed(namespaces, root(wire("tenant", "s"), "s"))
    assert asked(namespaces, PROMPT, NamespaceRequest(cache_salt="s", extra_key="tenant")) == [name]
    for other in (NamespaceRequest(extra_key="tenant"), NamespaceRequest(cache_salt="s"), NamespaceRequest()):
        assert name not in asked(namespaces, PROMPT, other)


def test_an_adapter_with_a_known_id_is_found_by_that_id_alone() -> None:
    namespaces = verified()
    name = filed(namespaces, root(wire(ADAPTER), lora_name="a"), [ADAPTER])
    assert name in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=[ADAPTER]))
    assert name in asked(namespaces, PROMPT, NamespaceRequest(extra_key=ADAPTER))
    assert name not in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=["another path's"]))


def test_a_default_format_files_an_adapter_by_its_name() -> None:
    namespaces = verified()
    assert filed(namespaces, root(wire(dynamo=False), lora_name="a"), [ADAPTER]) == named(None, "a")
    assert named(None, "a") in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=[ADAPTER]))


@pytest.mark.parametrize("lora_ids", [[], [ADAPTER]])
def test_an_adapter_with_a_random_id_is_found_by_its_name_and_first_page(lora_ids: list[str]) -> None:
    """Also when it is listed with a path: an adapter loaded through the API has one too."""
    namespaces = verified(extra_keys=False)
    name = filed(namespaces, root(wire("random id"), lora_name="a"), lora_ids)
    assert name in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=lora_ids))
    assert name in asked(namespaces, PROMPT, NamespaceRequest(extra_key="random id"))
    assert name not in asked(namespaces, PROMPT, NamespaceRequest("b", lora_ids=lora_ids))
    assert name not in asked(namespaces, PROMPT, NamespaceRequest("a", cache_salt="s", lora_ids=lora_ids))
    assert name not in asked(namespaces, PROMPT, NamespaceRequest("a", extra_key="tenant", lora_ids=lora_ids))
    assert name not in asked(namespaces, array("I", [5, 9]).tobytes(), NamespaceRequest("a", lora_ids=lora_ids))


@pytest.mark.parametrize("tenant_first", [False, True])
def test_beside_an_adapter_whose_id_follows_from_its_path_others_are_extra_keys(tenant_first: bool) -> None:
    namespaces = verified()
    events = [root(wire("tenant" + ADAPTER), lora_name="a"), root(wire(ADAPTER), lora_name="a")]
    names = [filed(namespaces, event, [ADAPTER]) for event in (events if tenant_first else events[::-1])]
    tenant, own = names if tenant_first else names[::-1]
    request = NamespaceRequest("a", lora_ids=[ADAPTER])
    assert own in asked(namespaces, PROMPT, request)
    assert tenant not in asked(namespaces, PROMPT, request)
    assert tenant in asked(namespaces, PROMPT, request._replace(extra_key="tenant"))
    assert tenant not in asked(namespaces, PROMPT, request, slot=1)


def test_what_may_be_an_extra_key_behind_a_random_id_is_not_answered_without_it() -> None:
    """Nothing tells the two apart, so neither is answered, where extra_keys are declared to be used."""
    for extra_keys in (True, False, None):
        namespaces = verified(extra_keys)
        name = filed(namespaces, root(wire("tenant" + "random id"), lora_name="a"), [ADAPTER])
        found = name in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=[ADAPTER]))
        assert found is (extra_keys is not True)
        assert name in asked(namespaces, PROMPT, NamespaceRequest(extra_key="tenant" + "random id"))


def test_an_extra_key_of_an_adapter_whose_id_is_not_known_is_not_the_base_models() -> None:
    namespaces = verified()
    name = filed(namespaces, root(wire("tenant")))
    assert name in asked(namespaces, PROMPT, NamespaceRequest(extra_key="tenant"))
    assert asked(namespaces, PROMPT, NamespaceRequest("a", extra_key="tenant")) == []


@pytest.mark.parametrize("ids", [["of the new path", ADAPTER], [ADAPTER]])
@pytest.mark.parametrize("first", [ADAPTER, "random id"])
def test_an_adapter_that_was_loaded_again_is_not_found_by_what_it_was_before(first: str, ids: list[str]) -> None:
    namespaces = verified(extra_keys=False)
    before = filed(namespaces, root(wire(first), lora_name="a"), [ADAPTER])
    request = NamespaceRequest("a", lora_ids=[ADAPTER])
    assert before in asked(namespaces, PROMPT, request)
    namespaces.load_again(0, "a")
    after = filed(namespaces, root(wire("second id"), lora_name="a"), ids)
    for late in (ADAPTER, first):
        filed(namespaces, root(wire(late), lora_name="a"), ids)
    found = asked(namespaces, PROMPT, request._replace(lora_ids=ids[:1]))
    assert after in found
    assert before not in found
    assert asked(namespaces, PROMPT, request._replace(extra_key="tenant")) == []
    assert namespaces.label(0, before) == before
    assert namespaces.label(0, after) != after


@pytest.mark.parametrize("first", [ADAPTER, "random id"])
def test_without_extra_keys_a_second_id_shows_that_the_adapter_was_loaded_again(first: str) -> None:
    namespaces = verified(extra_keys=False)
    request = NamespaceRequest("a", lora_ids=[ADAPTER])
    before = filed(namespaces, root(wire(first), lora_name="a"), [ADAPTER])
    after = filed(namespaces, root(wire("second id"), lora_name="a"), [ADAPTER])
    assert after in asked(namespaces, PROMPT, request)
    assert before not in asked(namespaces, PROMPT, request)
    filed(namespaces, root(wire(first), lora_name="a"), [ADAPTER])
    assert before not in asked(namespaces, PROMPT, request)
    assert namespaces.loads.names_again(0) == ["a"]
    namespaces.forget(0)
    assert namespaces.loads.names_again(0) == []


def test_an_extra_key_may_already_end_with_the_adapters_id() -> None:
    namespaces = verified()
    name = filed(namespaces, root(wire("tenant" + ADAPTER), lora_name="a"))
    for text in ("tenant", "tenant" + ADAPTER):
        request = NamespaceRequest(lora_name="a", extra_key=text, lora_ids=[ADAPTER])
        assert asked(namespaces, PROMPT, request) == [name]


def test_hashes_of_a_worker_that_never_sent_a_genuine_one_say_nothing() -> None:
    namespaces = RadixNamespaces(8)
    assert filed(namespaces, root(77)) == named(None, None)
    assert filed(namespaces, root(b"\xaa" * 32, "s", "a")) == named("s", "a")
    assert not namespaces.is_misfiled(0)


def test_discovery_may_say_that_a_worker_sends_the_dynamo_format() -> None:
    namespaces = RadixNamespaces(8)
    namespaces.expect_dynamo(0)
    name = filed(namespaces, root(wire("tenant")))
    assert asked(namespaces, PROMPT, NamespaceRequest(extra_key="tenant")) == [name]
    namespaces.forget(0)
    assert filed(namespaces, root(wire("tenant"))) == named(None, None)


@pytest.mark.parametrize("told", [True, False])
def test_roots_filed_before_hashes_could_be_read_are_misfiled_until_the_next_clear(told: bool) -> None:
    """Discovery tells the format late, or a later root does."""
    namespaces = RadixNamespaces(8)
    filed(namespaces, root(wire("tenant")))
    assert not namespaces.is_misfiled(0)
    if told:
        namespaces.expect_dynamo(0)
    else:
        filed(namespaces, root(wire()))
    assert namespaces.is_misfiled(0)
    namespaces.cleared(0)
    filed(namespaces, root(wire("tenant")))
    assert not namespaces.is_misfiled(0)


def test_what_was_learnt_from_roots_is_learnt_again_from_their_labels() -> None:
    events = {
        "plain": root(wire()),
        "tenant": root(wire("tenant")),
        "random": root(wire("random id", "s"), "s", "b"),
        "own": root(wire(ADAPTER), lora_name="a"),
    }
    before, after = verified(), RadixNamespaces(8)
    for one in (before, after):
        one.loads.declare(0, False)
    for event in events.values():
        filing = before.of_root(0, event, [ADAPTER])
        assert after.relearn(0, filing.label, event.block_hashes, event.tokens) == filing.namespace
        stored = before.label(0, filing.namespace)
        assert after.relearn(0, stored, event.block_hashes, event.tokens, [ADAPTER]) == filing.namespace
    assert after.is_genuine(0)
    assert not after.is_misfiled(0)
    for request in (
        NamespaceRequest("b", "s"),
        NamespaceRequest("a", lora_ids=[ADAPTER]),
        NamespaceRequest(extra_key="tenant"),
        NamespaceRequest(),
    ):
        assert asked(after, PROMPT, request) == asked(before, PROMPT, request)


def test_a_label_of_a_misfiled_root_shows_it() -> None:
    namespaces, tenant = RadixNamespaces(8), root(wire("tenant"))
    label = RadixNamespaces(8).of_root(0, tenant).label
    assert namespaces.relearn(0, label, tenant.block_hashes, PAGE) == named(None, None)
    namespaces.expect_dynamo(0)
    assert namespaces.is_misfiled(0)


@pytest.mark.parametrize(("lora_ids", "misfiled"), [([ADAPTER], False), ([], True)])
def test_an_adapters_root_stored_by_name_is_believed_only_if_its_id_explains_it(
    lora_ids: list[str], misfiled: bool
) -> None:
    """Releases before labels filed these so. What cannot be judged is fetched again."""
    namespaces = verified()
    assert namespaces.relearn(0, named(None, "a"), [wire(ADAPTER)], PAGE, lora_ids) == named(None, "a")
    assert namespaces.is_misfiled(0) is misfiled
    assert named(None, "a") in asked(namespaces, PROMPT, NamespaceRequest("a", lora_ids=[ADAPTER]))


def test_empty_texts_are_none_and_short_prompts_lie_nowhere() -> None:
    namespaces = verified()
    request = NamespaceRequest(lora_name="", cache_salt="", extra_key="")
    assert asked(namespaces, PROMPT, request) == [named(None, None)]
    assert asked(namespaces, PROMPT[:4], request) == []
    assert filed(namespaces, BlockStored([], None, b"", 2)) == named(None, None)


def test_hidden_namespaces_are_remembered_in_bounded_number() -> None:
    """Of one page, one for every engine that loaded the adapter by itself."""
    namespaces = verified(extra_keys=False)
    first = namespaces.of_root(0, root(1, "first", "a"))
    assert namespaces.label(0, first.namespace) == first.label != first.namespace
    for number in range(MAX_HIDDEN):
        filed(namespaces, root(number + 2, f"{number}", "a"))
    assert first.namespace not in asked(namespaces, PROMPT, NamespaceRequest("a", "first"))
    assert namespaces.label(0, first.namespace) == first.namespace
    for slot in range(MAX_ALIKE + 40):
        namespaces.expect_dynamo(slot)
        namespaces.loads.declare(slot, False)
        namespaces.of_root(slot, root(slot, "s", "a"))
    every = (1 << MAX_ALIKE + 40) - 1
    assert max(len(place.names) for place in namespaces.places(PROMPT, NamespaceRequest("a", "s"), every)) == MAX_ALIKE


def test_the_next_owner_of_a_slot_did_not_load_again_what_the_former_had() -> None:
    namespaces = verified(extra_keys=False)
    request = NamespaceRequest("a", lora_ids=[ADAPTER])
    before = filed(namespaces, root(wire("an id"), lora_name="a"), [ADAPTER])
    namespaces.forget(0)
    namespaces.loads.declare(0, False)
    assert filed(namespaces, root(wire())) == named(None, None)
    assert before not in asked(namespaces, PROMPT, request)
    after = filed(namespaces, root(wire("another id"), lora_name="a"), [ADAPTER])
    assert after in asked(namespaces, PROMPT, request)
    assert namespaces.loads.names_again(0) == []

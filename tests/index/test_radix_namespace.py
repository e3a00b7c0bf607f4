"""Namespaces of the radix tree: by name when the hash is explained, by first page when it is not."""

from __future__ import annotations

from array import array

from index.event import BlockStored, EngineHash
from index.page_hash import namespaced, page_hashes, wire_int64
from index.radix_namespace import MAX_HIDDEN, NamespaceRequest, RadixNamespaces, named

PAGE = array("I", [5, 6]).tobytes()
PROMPT = array("I", [5, 6, 7]).tobytes()
ADAPTER = "0f" * 16


def wire(extra_key: str | None = None, cache_salt: str | None = None, *, dynamo: bool = True) -> int:
    plain = wire_int64(page_hashes(PAGE, 8, cache_salt)[0])
    return namespaced(plain, extra_key, cache_salt) if dynamo else plain


def root(first: EngineHash, cache_salt: str | None = None, lora_name: str | None = None) -> BlockStored:
    return BlockStored([first], None, PAGE, 2, lora_name=lora_name, cache_salt=cache_salt)


def verified() -> RadixNamespaces:
    namespaces = RadixNamespaces(8)
    assert namespaces.of_root(0, root(wire())) == named(None, None)
    return namespaces


def test_a_salt_is_a_namespace_in_both_formats() -> None:
    namespaces = verified()
    for dynamo in (True, False):
        assert namespaces.of_root(0, root(wire(None, "s", dynamo=dynamo), "s")) == named("s", None)
    assert namespaces.of_request(PROMPT, NamespaceRequest(cache_salt="s")) == [named("s", None)]
    assert namespaces.of_request(PROMPT, NamespaceRequest()) == [named(None, None)]


def test_an_extra_key_is_found_by_the_hash_of_the_first_page() -> None:
    namespaces = verified()
    name = namespaces.of_root(0, root(wire("tenant", "s"), "s"))
    assert namespaces.of_request(PROMPT, NamespaceRequest(cache_salt="s", extra_key="tenant")) == [name]
    for other in (NamespaceRequest(extra_key="tenant"), NamespaceRequest(cache_salt="s"), NamespaceRequest()):
        assert name not in namespaces.of_request(PROMPT, other)


def test_an_adapter_with_a_known_id_is_filed_by_its_name() -> None:
    namespaces = verified()
    name = namespaces.of_root(0, root(wire(ADAPTER), lora_name="a"), [ADAPTER])
    assert name == named(None, "a")
    assert name in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="a"))
    assert name in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="a", lora_ids=[ADAPTER]))


def test_an_adapter_with_an_unknown_id_is_found_by_its_name_and_first_page() -> None:
    namespaces = verified()
    name = namespaces.of_root(0, root(wire("random id"), lora_name="a"))
    assert name in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="a"))
    assert name in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="a", extra_key="random id"))
    assert name not in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="b"))
    assert name not in namespaces.of_request(PROMPT, NamespaceRequest(lora_name="a", cache_salt="s"))
    assert name not in namespaces.of_request(array("I", [5, 9]).tobytes(), NamespaceRequest(lora_name="a"))


def test_an_extra_key_may_already_end_with_the_adapters_id() -> None:
    namespaces = verified()
    name = namespaces.of_root(0, root(wire("tenant" + ADAPTER), lora_name="a"))
    for text in ("tenant", "tenant" + ADAPTER):
        request = NamespaceRequest(lora_name="a", extra_key=text, lora_ids=[ADAPTER])
        assert namespaces.of_request(PROMPT, request) == [name]


def test_hashes_of_a_worker_that_never_sent_a_genuine_one_say_nothing() -> None:
    namespaces = RadixNamespaces(8)
    assert namespaces.of_root(0, root(77)) == named(None, None)
    assert namespaces.of_root(0, root(b"\xaa" * 32, "s", "a")) == named("s", "a")


def test_discovery_may_say_that_a_worker_sends_the_dynamo_format() -> None:
    namespaces = RadixNamespaces(8)
    namespaces.expect_dynamo(0)
    name = namespaces.of_root(0, root(wire("tenant")))
    assert namespaces.of_request(PROMPT, NamespaceRequest(extra_key="tenant")) == [name]
    namespaces.forget(0)
    assert namespaces.of_root(0, root(wire("tenant"))) == named(None, None)


def test_empty_texts_are_none_and_short_prompts_lie_nowhere() -> None:
    namespaces = verified()
    request = NamespaceRequest(lora_name="", cache_salt="", extra_key="")
    assert namespaces.of_request(PROMPT, request) == [named(None, None)]
    assert namespaces.of_request(PROMPT[:4], request) == []
    assert namespaces.of_root(0, BlockStored([], None, b"", 2)) == named(None, None)


def test_names_cannot_be_confused() -> None:
    pairs = [(salt, lora) for salt in (None, "a", "ab", "1:a") for lora in (None, "a", "ab", "b", "1:a")]
    assert len({named(salt, lora) for salt, lora in pairs}) == len(pairs)


def test_hidden_namespaces_are_remembered_in_bounded_number() -> None:
    namespaces = verified()
    first = namespaces.of_root(0, root(1, "first", "a"))
    for number in range(MAX_HIDDEN):
        namespaces.of_root(0, root(number + 2, f"{number}", "a"))
    assert first not in namespaces.of_request(PROMPT, NamespaceRequest("a", "first"))
    for number in range(100):
        namespaces.of_root(0, root(number, "s", "a"))
    assert len(namespaces.of_request(PROMPT, NamespaceRequest("a", "s"))) == 65

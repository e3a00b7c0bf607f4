"""Addresses: many ways to write one, one way to compare them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.addresses import address_key, endpoint_port, event_endpoint, normal_url


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://a:8000", "http://a:8000"),
        ("HTTP://A:8000///", "http://a:8000"),
        ("https://a", "https://a"),
        ("http://a/prefix/", "http://a/prefix"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://under_score:1", "http://under_score:1"),
    ],
)
def test_a_url_has_one_normal_form(text: str, normal: str) -> None:
    assert normal_url(text) == normal
    assert normal_url(normal) == normal


@pytest.mark.parametrize("zone", ["%25eth0", "%eth0", "%251", "%25"])
def test_an_ipv6_zone_is_refused_as_what_it_is(zone: str) -> None:
    """It would reach the resolver as it stands, and say nothing to a gateway on another machine."""
    with pytest.raises(ValueError, match="must not name an IPv6 zone"):
        normal_url(f"http://[fe80::1{zone}]:8000")
    assert address_key(f"[fe80::1{zone}]:8000") is None
    assert normal_url("http://[fe80::1]:8000") == "http://[fe80::1]:8000"
    assert event_endpoint(f"tcp://[fe80::1{zone}]:5557")


def test_a_percent_sign_in_a_name_is_no_host() -> None:
    with pytest.raises(ValueError, match="host name that can be looked up"):
        normal_url("http://a%41:8000")
    assert normal_url("http://a:8000/a%20b") == "http://a:8000/a%20b"


@pytest.mark.parametrize(
    "names",
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000", "http://10.0.0.1:8000/", "HTTP://10.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000/"),
        ("http://a", "http://A:80/", "a", "a:80"),
        ("https://a", "https://a:443", "a:443"),
    ],
)
def test_the_names_of_one_address_have_one_key(names: tuple[str, ...]) -> None:
    assert len({address_key(name) for name in names}) == 1
    assert address_key(names[0]) is not None


def test_different_addresses_have_different_keys() -> None:
    names = ["a:1", "a:2", "b:1", "a:1/x", "https://a", "http://a"]
    assert len({address_key(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "a b", "ftp://a", "http://", "a:b:c", "a:99999", "\ud800", "u:p@a:1", "a?x"])
def test_what_is_no_address_has_no_key(name: str) -> None:
    assert address_key(name) is None


def test_an_endpoint_keeps_its_spelling_and_has_a_port() -> None:
    for text, port in (("tcp://[::]:5557", 5557), ("tcp://*:1", 1), ("ipc:///x", None)):
        assert event_endpoint(text) == text
        assert endpoint_port(text) == port


@given(st.text(st.characters(exclude_categories=[])) | st.text("htps:/[]a1.@?#% ", max_size=20))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    address_key(text)
    for read in (normal_url, event_endpoint):
        try:
            assert read(read(text)) == read(text)
        except ValueError as error:
            str(error).encode()

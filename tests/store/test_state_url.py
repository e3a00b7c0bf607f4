"""URLs of stores: what is taken, what is refused in words, and that credentials stay out of sight."""

from __future__ import annotations

from typing import Any

import pytest

from store.memory_state import MemoryState
from store.state_url import SCHEMES, check_url, open_store, shown_url


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://user:p%40ss@[::1]:6379/15",
        "rediss://:secret@host/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false",
        "valkey://host",
        "valkeys://host?ssl_cert_reqs=none",
        "redis+cluster://host:7000",
        "redis+cluster://user:secret@host:7000/0",
        "rediss+cluster://host:7000?ssl_ca_certs=/etc/ca.pem",
        "valkey+cluster://host",
    ],
)
async def test_urls_of_stores_are_taken(url: str) -> None:
    check_url(url)
    store = open_store(url)
    assert isinstance(store, MemoryState) == url.startswith("memory")
    await store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "must begin with"),
        ("host:6379", "must begin with"),
        ("http://secret@host", "must begin with one of memory://, redis://"),
        ("memory://host", "takes nothing more"),
        ("redis://", "no host"),
        ("redis://:secret@/0", "no host"),
        ("redis://:secret@host:port", "not a URL"),
        ("redis://:sec/ret@host", "not a URL"),
        ("redis://:secret#@host", "not a URL"),
        ("redis://:secret@host/0#x", "must not hold #"),
        ("redis://:secret@host/db", "database's number"),
        ("redis://:secret@host/-1", "database's number"),
        ("redis+cluster://:secret@host/1", "only database 0"),
        ("redis://:secret@host?db=secret", "can hold nothing"),
        ("rediss://:secret@host?password=secret", "can hold ssl_ca_certs"),
    ],
)
def test_other_urls_are_refused_without_their_secrets(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("redis://user:secret@host:6379/1", "redis://host:6379/1"),
        ("rediss://:se@cret@host/0?ssl_keyfile=secret", "rediss://host/0"),
        ("redis+cluster://:secret@[::1]:7000", "redis+cluster://[::1]:7000"),
        ("redis://[::secret", "(not a URL)"),
    ],
)
def test_a_shown_url_has_no_credentials(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_every_scheme_is_taken() -> None:
    for scheme in SCHEMES:
        check_url(f"{scheme}://" if scheme == "memory" else f"{scheme}://host")


async def test_the_clients_get_what_the_url_says() -> None:
    store: Any = open_store("redis://me:p%40ss@[::1]:7001/3")
    found = store._link._client.connection_pool.connection_kwargs
    expected = {"host": "::1", "port": 7001, "db": 3, "username": "me", "password": "p@ss"}
    assert {name: found[name] for name in expected} == expected
    await store.close()

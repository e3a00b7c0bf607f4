"""Addresses in one normal form: instance URLs, event endpoints, and the many ways a gateway names an instance.

Everything here raises ValueError with a sentence that says what is allowed, without repeating the input.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address
from urllib.parse import SplitResult, urlsplit

import httpx

_UNSAFE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NO_HOST = "must have a host name that can be looked up"
_ZONE = (
    "must not name an IPv6 zone (what follows the %): it means an interface of one machine, and gateways on others, "
    "and most HTTP clients, cannot use it; give an address that is reached without one"
)


def normal_url(text: str) -> str:
    """An http(s) URL with lower-case scheme and host and no trailing slash; a path prefix stays."""
    if _UNSAFE.search(text):
        raise ValueError("must not contain spaces or control characters")
    parts = _split(text)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry a user name or password, since it is shown in answers")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError("must not carry a query or a fragment")
    _require_encodable(text)
    return f"{parts.scheme}://{_authority(parts)}{parts.path.rstrip('/')}"


@lru_cache(maxsize=4096)
def address_key(text: str) -> str | None:
    """What `host:port`, `http://host:port` and `http://host:port/` have in common; None when it is no address.

    Gateways name an instance by its URL or by host and port; comparing keys finds it by any of them.
    """
    try:
        parts = urlsplit(normal_url(text if "://" in text else f"http://{text}"))
        host, port = parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError:
        return None
    return f"{host}:{port}{parts.path}"


def event_endpoint(text: str) -> str:
    """A ZMQ endpoint to connect to: `tcp://host:port` (a wildcard host means the host of `url`) or `ipc://path`."""
    if _UNSAFE.search(text):
        raise ValueError("must not contain spaces or control characters")
    if text.startswith("ipc://") and len(text) > len("ipc://"):
        return text
    if not text.startswith("tcp://"):
        raise ValueError("must begin with tcp:// (or ipc://)")
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError("must be tcp://host:port with a port of 1 to 65535")
    if re.search(r"[/@?#]", host):
        raise ValueError("must be tcp://host:port, nothing else")
    return text


def endpoint_port(endpoint: str) -> int | None:
    """The port of a TCP endpoint; rank r listens on this port + r."""
    return int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp://") else None


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("must be a URL like http://host:8000") from None
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("must be a URL like http://host:8000")
    return parts


def _require_encodable(url: str) -> None:
    """Refuse a host that no HTTP client can name (bad punycode, labels that are too long)."""
    if "\\" in url:  # a slash to some clients
        raise ValueError(_NO_HOST)
    if "%" in (urlsplit(url).hostname or ""):  # RFC 6874 would allow a zone, RFC 9844 took that back
        raise ValueError(_ZONE if "[" in url else _NO_HOST)
    try:
        host = httpx.URL(url).host
        if ":" not in host and host.rstrip(".").rpartition(".")[2].isdigit():
            IPv4Address(host)  # 127.1 and 2130706433 are addresses to some clients and names to others
        if host.isascii() and ":" not in host:
            host.encode("idna")
    except (httpx.InvalidURL, ValueError):
        raise ValueError(_NO_HOST) from None


def _authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port is None else f"{shown}:{parts.port}"

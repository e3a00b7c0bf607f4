"""The cases' plain HTTP steps, bodies that no client library would send among them."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SHOWN_BYTES = 1 << 16
"""Of a body that is only announced, so much is sent."""


class Answer(NamedTuple):
    """One HTTP answer: what was asked, the status, the body (None: not JSON), the seconds it took."""

    request: dict[str, Any]
    status: int
    body: Any
    took_s: float


def send_http(url: str, step: dict[str, Any]) -> Answer:
    """Send a step's request over a connection of its own."""
    body, length = _body(step)
    address = urlsplit(url)
    head = f"{step['method']} {step['path']} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
    if body or step["method"] == "POST":
        head += f"content-type: application/json\r\ncontent-length: {length}\r\n"
    began = time.perf_counter()
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=30) as connection:
        connection.sendall(head.encode() + b"\r\n" + body)
        status, content = _read(connection)
    return Answer(step, status, content, time.perf_counter() - began)


def _body(step: dict[str, Any]) -> tuple[bytes, int]:
    """The bytes to send and the length to announce."""
    if "body_size" in step:
        return _sized(step["body_size"])
    if "body_hex" in step:
        body = bytes.fromhex(step["body_hex"])
    elif "body" in step:
        body = json.dumps(step["body"]).encode()
    else:
        body = step.get("body_raw", "").encode()
    return body, len(body)


def _sized(words: str) -> tuple[bytes, int]:
    """ "1,000,000 token ids ..." or "512 MB"."""
    size = re.match(r"([\d,]+) (token ids|MB)", words)
    assert size, words
    number = int(size[1].replace(",", ""))
    if size[2] == "MB":
        return b" " * SHOWN_BYTES, number << 20
    body = json.dumps({"model": "m", "token_ids": [100_000 + n % 30_000 for n in range(number)]}).encode()
    return body, len(body)


def _read(connection: socket.socket) -> tuple[int, Any]:
    answer = b""
    while chunk := connection.recv(1 << 16):
        answer += chunk
    head, _, content = answer.partition(b"\r\n\r\n")
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    return int(head.split(b" ", 2)[1]), body

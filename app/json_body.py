"""Strict JSON bodies: not JSON is 400, a value that does not fit is 422 with its field, nothing is converted."""

from __future__ import annotations

import json
import re
from typing import TypeVar

import msgspec

from app.problems import Problem
from app.settings_text import RepeatedKey, unique_pairs
from app.shown import shown

T = TypeVar("T")
_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<field>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_COLON = re.compile(rb"[ \t\r\n]*:")
_FEW_STRINGS = 64


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type. Raises Problem; neither its detail nor its field holds any value of the body.

    400: malformed, not UTF-8, lone surrogates, NaN, nested too deeply. 422: a wrong type, a number out of range, a
    missing field, a key given twice in one object.
    """
    if not body.isascii():
        _refuse_other_encodings(body)
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise field_problem(str(error)) from None
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body is not JSON: {_malformed(str(error))}") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    if _may_repeat_a_key(body):
        _refuse_repeated_keys(body)
    return value


def field_problem(message: str) -> Problem:
    """The 422 answer for the text of a msgspec.ValidationError, which names types, bounds and the place, no values."""
    place = _AT.search(message)
    field = place["field"] if place else ""
    words = message[: place.start()] if place else message
    if missing := _MISSING.match(words):
        field = f"{field}.{missing['name']}" if field else missing["name"]
        words = "the field is missing"
    return Problem(422, words.replace("`", ""), field=field or None)


def _refuse_other_encodings(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 (byte {error.start})") from None


def _malformed(message: str) -> str:
    if message == "Input data was truncated":
        return "it ends too early, or holds half a surrogate pair"
    return message.removeprefix("JSON is malformed: ")


def _may_repeat_a_key(body: bytes) -> bool:
    """False only when it is certain that no object repeats a key; costs a few memchr runs for a body of numbers."""
    if b"\\" in body:
        return True
    keys: set[bytes] = set()
    begin = body.find(b'"')
    for _ in range(_FEW_STRINGS):
        if begin < 0:
            return False
        end = body.find(b'"', begin + 1)
        if _COLON.match(body, end + 1):
            key = body[begin + 1 : end]
            if key in keys:
                return True
            keys.add(key)
        begin = body.find(b'"', end + 1)
    return True


def _refuse_repeated_keys(body: bytes) -> None:
    try:
        json.loads(body, object_pairs_hook=unique_pairs, parse_int=len, parse_float=len)
    except RepeatedKey as error:
        raise Problem(422, "this key is given twice in one object", field=shown(error.key)) from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None

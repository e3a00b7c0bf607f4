"""Routing requests: what fits is read exactly, what does not is a Problem that names the field, and nothing else."""

from __future__ import annotations

import json
import random
from array import array
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.problems import Problem
from app.route_body import body_form, check_prompt, read_route_request
from app.route_fields import RouteFields
from app.route_request import RouteRequest
from index.prompt import MultimodalItem

MAX_TOKENS = 1000
OCTETS = "application/octet-stream"


def read(
    body: bytes | str | dict[str, Any], content_type: str | None = "application/json", query: str = ""
) -> RouteRequest:
    if isinstance(body, dict):
        body = json.dumps(body)
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return read_route_request(raw, content_type, query.encode(), MAX_TOKENS)


def refusal(
    body: bytes | str | dict[str, Any], content_type: str | None = "application/json", query: str = ""
) -> Problem:
    with pytest.raises(Problem) as caught:
        read(body, content_type, query)
    caught.value.response()
    return caught.value


def octets(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def request(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "token_ids": [1, 2, 3]} | fields


def test_the_least_request_has_the_documented_defaults() -> None:
    assert read({"model": "m", "token_ids": [1, 0, 4294967295]}) == RouteRequest(
        model="m",
        tokens=octets(1, 0, 4294967295),
        prompt=None,
        messages=None,
        tools=None,
        chat_template_kwargs=None,
        add_generation_prompt=True,
        lora=None,
        cache_salt=None,
        extra_key=None,
        mm_items=(),
        candidates=None,
        exclude=(),
        selector={},
        session_id=None,
        max_tokens=None,
        priority=0,
        dry_run=False,
        explain=False,
        strict=False,
        reads_cache=True,
    )


def test_every_field_arrives() -> None:
    fields = {
        "lora": "ad",
        "cache_salt": "s" * 128,
        "extra_key": "k\0",
        "mm_items": [{"hash": "b", "offset": 2, "length": 1}, {"hash": "a", "offset": 0, "length": 2}],
        "candidates": ["a", "http://b:1/"],
        "exclude": ["c"],
        "selector": {"zone": "ä"},
        "session_id": "s",
        "max_tokens": 0,
        "priority": -5,
        "dry_run": True,
        "explain": True,
        "strict": True,
    }
    expected = {
        **fields,
        "mm_items": (MultimodalItem("a", 0, 2), MultimodalItem("b", 2, 1)),
        "candidates": ("a", "http://b:1/"),
        "exclude": ("c",),
    }
    got = read(request(**fields))._asdict()
    assert {key: got[key] for key in fields} == expected


def test_text_and_chat_are_kept_as_they_are() -> None:
    assert read({"model": "m", "prompt": "x\0y\n😀"}).prompt == "x\0y\n😀"
    messages = [{"role": "user", "content": [{"type": "text", "text": "a", "n": 1.5}], "extra": None}]
    chat = read(
        {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function"}],
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": False,
        }
    )
    assert chat.tokens is None
    assert (chat.messages, chat.tools) == (messages, [{"type": "function"}])
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    assert chat.add_generation_prompt is False


def test_a_prompt_of_integers_means_token_ids() -> None:
    assert read({"model": "m", "prompt": [7, 8]}).tokens == octets(7, 8)


@pytest.mark.parametrize("name", [name for name in RouteFields.__struct_fields__ if name not in ("model", "token_ids")])
def test_null_counts_as_absent(name: str) -> None:
    assert read(request(**{name: None})) == read(request())


@pytest.mark.parametrize("name", ["lora", "cache_salt", "extra_key", "session_id"])
def test_empty_text_counts_as_none(name: str) -> None:
    assert getattr(read(request(**{name: ""})), name) is None


@pytest.mark.parametrize("name", ["cache_salt", "session_id"])
@pytest.mark.parametrize(
    "text", ["s" * 129, "s" * 20_000, "a@b/c\\d\0e", "\u00e4" * 300], ids=["129", "20000", "signs", "wide"]
)
def test_salts_and_sessions_have_no_bound_of_ours(name: str, text: str) -> None:
    assert getattr(read(request(**{name: text})), name) == text
    assert getattr(read(octets(1), OCTETS, urlencode({"model": "m", name: text})), name) == text


def test_fields_of_the_engine_request_are_ignored() -> None:
    assert read(request(stream=True, n=1, temperature=0.5, token_id=[True], stop=["a"])) == read(request())


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprobs": 1}, False),
        ({"prompt_logprobs": None}, True),
        ({"logprobs": 5}, True),
        ({"echo": True}, True),
        ({"echo": True, "logprobs": 0}, False),
        ({"echo": False, "logprobs": 5}, True),
        ({"token_ids": None, "messages": [{}], "echo": True}, False),
        ({"token_ids": None, "messages": [{}], "logprobs": True}, True),
    ],
)
def test_requests_for_prompt_log_probabilities_skip_the_cache(fields: dict[str, Any], reads: bool) -> None:
    assert read(request(**fields)).reads_cache is reads


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("true", 422),
        ("false", 422),
        ("1.0", 422),
        ("1.5", 422),
        ("1e2", 422),
        ("1e400", 422),
        ("-1", 422),
        ("4294967296", 422),
        ("18446744073709551617", 422),
        ("9" * 23, 422),
        ("9" * 5000, 422),
        ('"7"', 422),
        ("null", 422),
        ("[1]", 422),
        ("{}", 422),
        ("NaN", 400),
        ("Infinity", 400),
        ("-Infinity", 400),
        ("01", 400),
        ("+1", 400),
        ("0x1", 400),
        ("1_0", 400),
        ("", 400),
    ],
)
@pytest.mark.parametrize("field", ["token_ids", "prompt"])
def test_no_token_is_converted(field: str, token: str, status: int) -> None:
    problem = refusal(f'{{"model":"m","{field}":[5,{token}]}}')
    assert problem.status == status
    if status == 422:
        assert problem.field == f"{field}[1]"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"token_ids": None}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": None, "prompt": ""}, "prompt"),
        ({"token_ids": None, "prompt": []}, "prompt"),
        ({"token_ids": None, "prompt": ["a", "b"]}, "prompt[0]"),
        ({"token_ids": None, "prompt": [[1]]}, "prompt[0]"),
        ({"token_ids": None, "prompt": 5}, "prompt"),
        ({"token_ids": None, "messages": []}, "messages"),
        ({"token_ids": None, "messages": "hi"}, "messages"),
        ({"token_ids": None, "messages": ["hi"]}, "messages[0]"),
        ({"token_ids": "1"}, "token_ids"),
        ({"prompt": "x"}, "prompt"),
        ({"messages": [{}]}, "messages"),
        ({"token_ids": [1] * (MAX_TOKENS + 1)}, "token_ids"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "x" * 513}, "model"),
        ({"lora": 1}, "lora"),
        ({"cache_salt": 1}, "cache_salt"),
        ({"extra_key": "s" * 1025}, "extra_key"),
        ({"session_id": ["s"]}, "session_id"),
        ({"candidates": "a"}, "candidates"),
        ({"candidates": [1]}, "candidates[0]"),
        ({"candidates": ["a"] * 4097}, "candidates"),
        ({"exclude": ["a", None]}, "exclude[1]"),
        ({"selector": {"zone": 1}}, "selector[...]"),
        ({"selector": ["zone"]}, "selector"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"priority": "1"}, "priority"),
        ({"priority": 10**30}, "priority"),
        ({"dry_run": 1}, "dry_run"),
        ({"dry_run": "true"}, "dry_run"),
        ({"explain": []}, "explain"),
        ({"strict": 0}, "strict"),
        ({"mm_items": [{"hash": "", "offset": 0, "length": 1}]}, "mm_items[0].hash"),
        ({"mm_items": [{"hash": "a", "offset": -1, "length": 1}]}, "mm_items[0].offset"),
        ({"mm_items": [{"hash": "a", "offset": 0, "length": 0}]}, "mm_items[0].length"),
        ({"mm_items": [{"hash": "a", "offset": 0}]}, "mm_items[0].length"),
        ({"mm_items": [{"hash": "a", "offset": 2, "length": 2}]}, "mm_items"),
        ({"mm_items": [{"hash": "a", "offset": 3, "length": 1}]}, "mm_items"),
        ({"mm_items": [{"hash": "a", "offset": 1, "length": 2}, {"hash": "b", "offset": 0, "length": 2}]}, "mm_items"),
    ],
)
def test_a_field_that_does_not_fit_is_422_with_its_name(fields: dict[str, Any], field: str) -> None:
    problem = refusal(request(**fields))
    assert (problem.status, problem.field) == (422, field)


def test_a_missing_model_is_named() -> None:
    problem = refusal('{"token_ids":[1]}')
    assert (problem.status, problem.field) == (422, "model")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"  ", 400),
        (b"{", 400),
        (b"nonsense", 400),
        (b'{"model":"m","token_ids":[1]}x', 400),
        (b'{"model":"m","token_ids":[1],}', 400),
        (b"{'model':'m'}", 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"model":"\xff","token_ids":[1]}', 400),
        (b'{"model":"m","other":"\xff","token_ids":[1]}', 400),
        (b'{"model":"m","\xc3":1,"token_ids":[1]}', 400),
        (b'{"model":"\xed\xa0\x80","token_ids":[1]}', 400),
        (b'{"model":"m\\ud800","token_ids":[1]}', 400),
        (b'{"model":"m\\udfff","token_ids":[1]}', 400),
        (b'{"model":"m","prompt":"x\\ud800y"}', 400),
        (b'{"model":"m","token_ids":[1],"other":"\\ud800"}', 400),
        (b'{"model":"m\0","token_ids":[1]}', 400),
        (b'{"model":"m","token_ids":Infinity}', 400),
        (b'{"model":"m","token_ids":[1],"other":NaN}', 400),
        (b'{"model":"m","token_ids":[1],"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"model":"m","messages":[{"a":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_002, 400),
        (b'{"model":"m","prompt":"\\n","other":' + b"[" * 900 + b"]" * 900 + b"}", 0),
        (b"[]", 422),
        (b"null", 422),
        (b"5", 422),
        (b'"text"', 422),
        (b'{"model":"m","prompt":"x","other":1e400}', 0),
        (b'{"model":"m","messages":[{"n":1e400}]}', 422),
        (b'{"model":"m","messages":[{"n":' + b"9" * 5000 + b"}]}", 422),
    ],
)
def test_what_is_no_request_is_refused_whatever_it_is(body: bytes, status: int) -> None:
    if status == 0:
        assert read(body).prompt
    else:
        assert refusal(body).status == status


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"model":"m","token_ids":[1],"token_ids":[2]}', "token_ids"),
        ('{"model":"m","model" \n :"n","token_ids":[1]}', "model"),
        ('{"model":"m","mod\\u0065l":"n","token_ids":[1]}', "model"),
        ('{"model":"m","token_ids":[1],"selector":{"a":"1","a":"2"}}', "a"),
        ('{"model":"m","token_ids":[1],"other":[{"a":1,"b":2,"a":1}]}', "a"),
        ('{"model":"m","prompt":"say \\"hi\\"","prompt":"x"}', "prompt"),
    ],
)
def test_a_key_given_twice_is_refused(body: str, field: str) -> None:
    problem = refusal(body)
    assert (problem.status, problem.field) == (422, field)


def test_the_same_key_in_different_objects_is_fine() -> None:
    messages = [{"role": "user", "content": '"role": "role":'}, {"role": "assistant", "content": "model"}]
    assert read({"model": "m", "messages": messages}).messages == messages
    assert read({"model": "model", "prompt": "prompt", "lora": "model"}).lora == "model"


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (None, "json"),
        ("application/json", "json"),
        ("Application/JSON; charset=UTF-8", "json"),
        ('application/json;charset="utf-8"', "json"),
        ("application/problem+json", "json"),
        ("application/octet-stream", "octets"),
        ("application/octet-stream; x=y", "octets"),
    ],
)
def test_content_types_that_are_taken(content_type: str | None, form: str) -> None:
    assert body_form(content_type) == form


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "json",
        ";",
        "image/x+json",
    ],
)
def test_other_content_types_are_415(content_type: str) -> None:
    assert refusal(request(), content_type).status == 415


def test_octets_are_the_same_request_as_json() -> None:
    fields: dict[str, Any] = {
        "lora": "ad&=",
        "cache_salt": "s",
        "mm_items": [{"hash": "a", "offset": 0, "length": 2}],
        "candidates": ["a", "b"],
        "exclude": ["c"],
        "selector": {"zone": "ä"},
        "session_id": "0",
        "max_tokens": 5,
        "priority": -1,
        "dry_run": True,
        "explain": False,
        "prompt_logprobs": 1,
    }
    query = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
    assert read(octets(1, 2, 3), OCTETS, urlencode(query | {"model": "m", "other": "[not json"})) == read(
        request(**fields)
    )


def test_texts_in_the_query_stay_texts_and_flags_may_be_digits() -> None:
    got = read(octets(1), OCTETS, "model=5&session_id=null&dry_run=1&explain=0")
    assert (got.model, got.session_id, got.dry_run, got.explain) == ("5", "null", True, False)


@pytest.mark.parametrize(
    ("body", "query", "field"),
    [
        (b"", "model=m", "token_ids"),
        (b"\1\0\0", "model=m", "token_ids"),
        (bytes(4 * MAX_TOKENS + 4), "model=m", "token_ids"),
        (octets(1), "", "model"),
        (octets(1), "model=", "model"),
        (octets(1), "model=m&model=m", "model"),
        (octets(1), "model=m&prompt=x", "prompt"),
        (octets(1), "model=m&token_ids=[1]", "token_ids"),
        (octets(1), "model=m&max_tokens=1.5", "max_tokens"),
        (octets(1), "model=m&max_tokens=x", "max_tokens"),
        (octets(1), "model=m&max_tokens=", "max_tokens"),
        (octets(1), "model=m&max_tokens=NaN", "max_tokens"),
        (octets(1), "model=m&max_tokens=" + "9" * 5000, "max_tokens"),
        (octets(1), "model=m&dry_run=yes", "dry_run"),
        (octets(1), "model=m&candidates=a,b", "candidates"),
        (octets(1), 'model=m&selector={"a":"1","a":"2"}', "selector"),
        (octets(1), "model=m&candidates=" + "[" * 5000, "candidates"),
        (octets(1), "model=%ff", None),
        (octets(1), "&".join(f"x{number}=1" for number in range(65)), None),
    ],
)
def test_octets_that_do_not_fit_are_422(body: bytes, query: str, field: str | None) -> None:
    problem = refusal(body, OCTETS, query)
    assert (problem.status, problem.field) == (422, field)


def test_a_prompt_known_later_is_checked_the_same_way() -> None:
    item = MultimodalItem("a", 1, 2)
    check_prompt(octets(1, 2, 3), (item,), 3)
    with pytest.raises(Problem, match="token"):
        check_prompt(octets(1, 2, 3), (), 2)
    with pytest.raises(Problem, match="item"):
        check_prompt(octets(1, 2), (item,), 3)


def test_problems_do_not_repeat_the_input() -> None:
    secret = "private-word"
    for fields in ({"token_ids": [secret]}, {"lora": [secret]}, {"selector": {secret: 1}}, {"max_tokens": secret}):
        assert secret not in str(refusal(request(**fields)).document)
    assert secret not in str(refusal(f'{{"{secret}').document)


any_text = st.text(st.characters(exclude_categories=[]), max_size=20)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(RouteFields.__struct_fields__), any_json, max_size=6))
def test_any_values_in_any_fields_are_a_request_or_a_problem(fields: dict[str, Any]) -> None:
    try:
        got = read({"model": "m", "token_ids": [1]} | fields)
    except Problem as problem:
        problem.response()
        return
    assert sum(value is not None for value in (got.tokens, got.prompt, got.messages)) == 1


@given(st.lists(st.integers(-3, 3) | st.integers(2**32 - 3, 2**32 + 3) | st.integers() | st.floats() | st.booleans()))
def test_token_ids_are_taken_exactly_when_all_are_integers_in_range(ids: list[Any]) -> None:
    fit = bool(ids) and all(type(token) is int and 0 <= token < 2**32 for token in ids)
    if fit:
        tokens = read({"model": "m", "token_ids": ids}).tokens
        assert tokens == b"".join(int.to_bytes(token, 4, "little") for token in ids)
    else:
        assert refusal({"model": "m", "token_ids": ids}).status in (400, 422)


@given(st.binary(max_size=60), st.binary(max_size=60), st.sampled_from(["application/json", OCTETS]))
def test_any_bytes_are_a_request_or_a_problem(body: bytes, query: bytes, content_type: str) -> None:
    try:
        read_route_request(body, content_type, query, MAX_TOKENS)
    except Problem as problem:
        problem.response()


def test_ten_thousand_mutated_bodies_are_requests_or_problems() -> None:
    """Bytes are changed, dropped, doubled and swapped for hostile snippets in a request with every kind of field."""
    draw = random.Random(20)
    original = json.dumps(
        request(
            messages=None, mm_items=[{"hash": "a", "offset": 0, "length": 1}], selector={"a": "b"}, candidates=["x"]
        )
    ).encode()
    snippets = [b"NaN", b"1e999", b"\\ud800", b"\xff", b"\0", b"[" * 50, b'"', b"-", b"true", b"9" * 400, b"null", b","]
    statuses: set[int] = set()
    for _ in range(10_000):
        body = bytearray(original)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(body))
            until = at + draw.choice((0, 1, 1, 5))
            body[at:until] = draw.choice(
                (b"", bytes([draw.randrange(256)]), draw.choice(snippets), body[until : until + 9])
            )
        try:
            read_route_request(bytes(body), None, b"", MAX_TOKENS)
            statuses.add(200)
        except Problem as problem:
            problem.response()
            statuses.add(problem.status)
    assert statuses == {200, 400, 422}


FURTHER = [
    {},
    {"lora": "a"},
    {"candidates": ["x", "y"]},
    {"session_id": "s"},
    {"dry_run": True, "selector": {"a": "b"}},
]
ITEM = {"mm_items": [{"hash": "a", "offset": 0, "length": 1}]}


@pytest.mark.parametrize("field", ["token_ids", "prompt"])
@given(
    st.lists(st.tuples(st.sampled_from([*FURTHER, ITEM]), st.lists(st.integers(0, 2**32 - 1), min_size=1)), min_size=1)
)
def test_what_was_asked_before_changes_no_request(field: str, asked: list[tuple[dict[str, Any], list[int]]]) -> None:
    for further, ids in asked:
        body = {"model": "m", field: ids, **further}
        raw = json.dumps(body).encode()
        assert read(raw) == read_route_request(raw, None, b"", MAX_TOKENS, core=None)
        assert read(raw).tokens == octets(*ids)


@given(st.lists(st.tuples(st.sampled_from(["m", "n"]), st.lists(st.integers(0, 9), min_size=1)), min_size=1))
def test_what_was_asked_before_changes_no_binary_request(asked: list[tuple[str, list[int]]]) -> None:
    for model, ids in asked:
        got = read(octets(*ids), OCTETS, f"model={model}&dry_run=1")
        assert (got.model, got.tokens, got.dry_run) == (model, octets(*ids), True)


def test_a_known_request_with_a_prompt_that_does_not_fit_is_refused() -> None:
    read(request(lora="known"))
    assert refusal(request(lora="known", token_ids=[1] * (MAX_TOKENS + 1))).field == "token_ids"
    read(octets(1), OCTETS, "model=known")
    assert refusal(octets(1) + b"x", OCTETS, "model=known").field == "token_ids"
    assert refusal(octets(*range(MAX_TOKENS + 1)), OCTETS, "model=known").field == "token_ids"


def test_any_number_of_different_requests_is_read() -> None:
    for number in range(600):
        assert read(request(lora=f"a{number}")).lora == f"a{number}"

"""With the native token list a body means what it means without: the same request, or the same problem."""

from __future__ import annotations

import json
from array import array
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.problems import Problem
from app.route_body import read_route_request
from app.route_request import RouteRequest
from tests.support.cores import native_module

MAX_TOKENS = 1 << 20
SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(scope="module")
def core() -> ModuleType:
    return native_module()


def read(body: bytes, core: ModuleType | None) -> RouteRequest | tuple[object, ...]:
    try:
        return read_route_request(body, "application/json", b"", MAX_TOKENS, core)
    except Problem as problem:
        return problem.status, problem.detail, problem.field, str(problem.document)


def same(body: bytes, core: ModuleType) -> RouteRequest | tuple[object, ...]:
    """What both ways of reading say."""
    with_core = read(body, core)
    assert with_core == read(body, None), body
    return with_core


def natively(body: bytes, core: ModuleType) -> list[int] | None:
    found = core.token_list(body)
    return None if found is None else array("I", found[0]).tolist()


IDS = st.one_of(
    st.integers(0, 200_000), st.integers(0, 0xFFFF_FFFF), st.sampled_from([0, 9, 10, 9_999_999, 10_000_000])
)


@given(st.lists(IDS, min_size=1, max_size=300), st.sampled_from([None, 0, 1]), st.sampled_from([",", ", ", " ,\n\t"]))
def test_every_list_of_ids_is_read(core: ModuleType, ids: list[int], indent: int | None, comma: str) -> None:
    for name in ("token_ids", "prompt"):
        body = json.dumps({"model": "m", name: ids, "dry_run": True}, indent=indent, separators=(comma, ": ")).encode()
        assert natively(body, core) == ids
        request = same(body, core)
        assert isinstance(request, RouteRequest)
        assert request.tokens == array("I", ids).tobytes()
        assert request.dry_run


REFUSED = [
    "[]", "[-1]", "[1.0]", "[1.5]", "[1e3]", "[1E3]", "[01]", "[00]", "[4294967296]", "[99999999999999999999]",
    "[true]", "[null]", '["1"]', "[[1]]", "[{}]", "[1,]", "[,1]", "[1,,2]", "[1 2]", "[1;2]", "[NaN]", "[Infinity]",
    "[+1]", "[0x1]", "[1_000]", "[1", "[", "1]", "[1]]", "[12345678,]", "[\v1]", "[1\0]", "[\xa01]", "[1]0", "[1,2",
    "[1[", "[1}", "[\u0661]", "[1,2,3,4,5,6,7,8,]", "[1.]", "[1/2]", "[:]", "[0 0]", "[42949672960]", "[00000001]",
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED)
@pytest.mark.parametrize("name", ["token_ids", "prompt"])
def test_what_is_no_list_of_ids_is_left_to_the_strict_reader(core: ModuleType, value: str, name: str) -> None:
    for body in (f'{{"model":"m","{name}":{value}}}', f'{{"{name}": {value} ,"model":"m"}}'):
        answer = same(body.encode(), core)
        assert not isinstance(answer, RouteRequest)
        assert answer[0] in (400, 422)


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"m","token_ids":[1],"token_ids":[2]}',
        '{"model":"m","token_ids":[1],"token\\u005fids":[2]}',
        '{"model":"m","token\\u005fids":[1]}',
        '{"model":"m","prompt":[1],"token_ids":[2]}',
        '{"model":"m","prompt":[1],"token_ids":null}',
        '{"model":"m","token_ids":null,"prompt":[1]}',
        '{"model":"m","prompt":"[1]","token_ids":[2]}',
        '{"model":"m","prompt":"a","token_ids":null}',
        '{"model":"m","messages":[{"token_ids":[1]}]}',
        '{"model":"m","x":{"token_ids":[1]},"token_ids":[2]}',
        '{"model":"m","x":[{"token_ids":[1]}],"token_ids":[2]}',
        '{"model":"m","x":"\\"token_ids\\":[1]","token_ids":[2]}',
        '{"model":"m\\"","token_ids":[2]}',
        '{"model":"\\","token_ids":[2]}',
        '{"model":"m","x":"\\ud800","token_ids":[2]}',
        '{"model":"m","x":1.5e400,"token_ids":[2]}',
        '{"model":"m","x":NaN,"token_ids":[2]}',
        '{"model":1,"token_ids":[2]}',
        '{"token_ids":[2]}',
        '{"model":"m","token_ids":[2]',
        '{"model":"m","token_ids":[2]}}',
        '{"model":"m","token_ids":[2]} ',
        ' \t\r\n{"model":"m","token_ids":[2]}',
        '\ufeff{"model":"m","token_ids":[2]}',
        '[{"model":"m","token_ids":[2]}]',
        '{"model":"m" "token_ids":[2]}',
        '{"model":"m",,"token_ids":[2]}',
        '{,"model":"m","token_ids":[2]}',
        '{"model":"m","x":],"token_ids":[2]}',
        '{"model":"m","x":[}],"token_ids":[2]}',
        '{"model":"m","x":[{]},"token_ids":[2]}',
        '{"model":"m","x":"\n","token_ids":[2]}',
        '{"model":"m","token_ids" [2]}',
        '{"model":"m","token_ids":[2],}',
        '{"model":"m","token_ids":[2]"x":1}',
        "{'model':'m','token_ids':[2]}",
        '{"model":"ü","token_ids":[2]}',
        '{"model":"m","token_ids":[2],"mm_items":[{"hash":"h","offset":0,"length":9}]}',
        '{"model":"m","token_ids":[2],"exclude":[1]}',
        '{"model":"m","Token_ids":[2]}',
        '{"model":"m","token_ids":[-0]}',
        '{"model":"m","x":' + "[" * 5000 + "]" * 5000 + ',"token_ids":[2]}',
        "{}",
        "",
        " ",
        "{",
        '{"',
        '{"token_ids',
        '{"token_ids":',
        '{"token_ids":[',
        "null",
    ],
)
def test_odd_bodies_mean_the_same(core: ModuleType, body: str) -> None:
    same(body.encode(), core)
    same(body.encode("utf-8") + b"\xff", core)
    same(body.encode("utf-16"), core)


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 1 << 33), st.floats(), st.text(max_size=8),
        st.sampled_from(["token_ids", '"token_ids":[1]', "\\", '"', "]", "}"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["token_ids", "prompt", "a", '"', "\\"]), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip
NAMES = st.sampled_from(["model", "token_ids", "prompt", "messages", "selector", "exclude", "dry_run", "x", 'q"', "ü"])
FIELDS = st.dictionaries(NAMES, st.one_of(VALUES, st.lists(IDS, max_size=9), st.just("m")), max_size=6)


@settings(max_examples=400)
@given(FIELDS, st.booleans(), st.sampled_from([None, 1]))
def test_any_object_means_the_same(core: ModuleType, fields: dict[str, object], ascii_only: bool, indent: int) -> None:
    text = json.dumps({"model": "m", **fields}, ensure_ascii=ascii_only, indent=indent)
    same(text.encode("utf-8", "surrogatepass"), core)


@settings(max_examples=400)
@given(SEEDS)
def test_damaged_bodies_mean_the_same(core: ModuleType, seed: int) -> None:
    dice = Random(seed)
    ids = [dice.choice([dice.randrange(10), dice.randrange(130_000), dice.randrange(1 << 33)]) for _ in range(20)]
    fields: dict[str, object] = {
        "model": "m",
        dice.choice(["token_ids", "prompt"]): ids,
        "x": {"token_ids": [1], "y": "]"},
    }
    names = list(fields)
    dice.shuffle(names)
    body = bytearray(json.dumps({name: fields[name] for name in names}).encode())
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(body))
        cut = dice.choice([0, 1, 1, 3, 20])
        body[at : at + cut] = dice.choice(
            [b"", b",", b"]", b"[", b'"', b"{", b"}", b"\\", b"0", b"-", b" ", b"\xc3", b"e"]
        )
    same(bytes(body), core)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_mean_the_same(core: ModuleType, junk: bytes) -> None:
    same(junk, core)
    same(b'{"model":"m","token_ids":[' + junk + b"]}", core)
    same(b'{"model":"m",' + junk + b',"token_ids":[1]}', core)


def test_common_bodies_do_not_need_the_strict_reader(core: ModuleType) -> None:
    """Else the native list would be right and useless."""
    body = json.dumps({"model": "m", "session_id": 'quote " and \\', "token_ids": list(range(9000))}).encode()
    assert natively(body, core) == list(range(9000))
    assert core.token_list(body)[1] == body[: body.index(b"[")] + b"[0]}"

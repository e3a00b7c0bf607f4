"""Every error leaves as a problem document that any client can read, and without the input it is about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import StreamingResponse

from app.problems import Problem, answer_problems

HOSTILE = "\ud800 \x00 \u2028 <script> " + "x" * 5000


def application() -> FastAPI:
    app = FastAPI()
    answer_problems(app)

    @app.get("/problem")
    async def problem() -> None:
        raise Problem(503, HOSTILE, field="a\udfff", headers={"retry-after": "1"}, extra={"n": float("nan"), "t": (1,)})

    @app.get("/unexpected")
    async def unexpected(text: str = "") -> None:
        raise RuntimeError(HOSTILE + text)

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, {"a": "b"}, headers={"x-kind": "pot"})

    @app.post("/typed")
    async def typed(body: dict[str, int]) -> None:
        del body

    @app.get("/broken-stream")
    async def broken_stream() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError("later")

        return StreamingResponse(chunks())

    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def document(response: httpx.Response) -> dict[str, object]:
    """The problem document, after checks that hold for every one."""
    assert response.headers["content-type"] == "application/problem+json"
    response.content.decode("ascii")
    found = json.loads(response.content, parse_constant=pytest.fail)
    json.dumps(found, ensure_ascii=False).encode()
    assert found["status"] == response.status_code
    assert found["type"] == "about:blank"
    assert isinstance(found["title"], str)
    assert isinstance(found["detail"], str)
    return dict(found)


async def test_a_problem_keeps_its_status_field_headers_and_members(client: httpx.AsyncClient) -> None:
    response = await client.get("/problem")
    found = document(response)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert (found["title"], found["field"]) == ("Service Unavailable", "a\\udfff")
    assert (found["n"], found["t"]) == (None, [1])


async def test_members_cannot_hide_the_standard_ones() -> None:
    assert Problem(404, "d", extra={"status": 200, "detail": "x", "models": []}).document == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "d",
        "models": [],
    }


async def test_unknown_paths_and_methods_are_problems(client: httpx.AsyncClient) -> None:
    missing = await client.get("/%00/nowhere")
    assert (missing.status_code, document(missing)["title"]) == (404, "Not Found")
    wrong = await client.request("DELETE", "/problem")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert "DELETE" in str(document(wrong)["detail"])


async def test_an_http_exception_keeps_its_words_and_headers(client: httpx.AsyncClient) -> None:
    response = await client.get("/teapot")
    assert (response.status_code, response.headers["x-kind"]) == (418, "pot")
    assert "b" in str(document(response)["detail"])


async def test_an_unexpected_exception_is_one_500_and_one_log_entry_and_tells_nothing(
    client: httpx.AsyncClient, log_lines: Callable[[], list[dict[str, object]]]
) -> None:
    response = await client.get("/unexpected", params={"text": "private-word"})
    assert response.status_code == 500
    assert "private-word" not in response.text
    assert "script" not in str(document(response))
    (entry,) = log_lines()
    assert (entry["event"], entry["error"], entry["path"]) == ("unexpected error", "RuntimeError", "/unexpected")
    assert (await client.get("/problem")).status_code == 503


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b'{"a": "private-word"}', 422, "a"),
        (b'{"a": NaN}', 422, "a"),
        (b'{"a": Infinity}', 422, "a"),
        (b'{"\\u0000": "x"}', 422, "\\x00"),
        (b'{"a": "\\ud800"}', 422, "a"),
        (b"private-word", 400, None),
        (b"\xff", 400, None),
    ],
)
async def test_a_request_that_fastapi_refuses_is_a_problem_without_its_input(
    client: httpx.AsyncClient, body: bytes, status: int, field: str | None
) -> None:
    response = await client.post("/typed", content=body, headers={"content-type": "application/json"})
    found = document(response)
    assert response.status_code == status
    assert found.get("field") == field
    assert "private-word" not in response.text


async def test_an_answer_that_has_begun_is_cut_off(client: httpx.AsyncClient) -> None:
    with pytest.raises(RuntimeError, match="later"):
        await client.get("/broken-stream")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.text(st.characters(exclude_categories=[])), st.dictionaries(st.text(max_size=8), json_values, max_size=3))
def test_any_text_and_any_members_make_a_document(detail: str, extra: dict[str, object]) -> None:
    response = Problem(422, detail, field=detail, extra=extra).response()
    found = json.loads(bytes(response.body), parse_constant=pytest.fail)
    json.dumps(found, ensure_ascii=False).encode()
    assert found["status"] == 422

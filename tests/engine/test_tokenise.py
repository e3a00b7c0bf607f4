"""Tokenising by the engine: what is asked, what is believed, how it fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from engine.address import EngineAddress
from engine.http_client import HttpClient
from engine.tokenise import ChatText, CompletionText, TokeniseError, tokenise
from index.worker import EngineKind
from tests.support.fake_engine import HTML, FakeEngine, Reply

CHAT = ChatText([{"role": "user", "content": "hi"}])


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def ask(client: HttpClient, engine: FakeEngine, text: CompletionText | ChatText) -> list[int]:
    return await tokenise(client, EngineAddress(engine.kind, engine.url), "m", text, 5)


def sent(engine: FakeEngine) -> dict[str, object]:
    body = json.loads(engine.bodies["/tokenize"][-1])
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("kind", EngineKind)
async def test_a_completion_gets_special_tokens(client: HttpClient, kind: EngineKind) -> None:
    with FakeEngine(kind) as engine:
        assert await ask(client, engine, CompletionText("héllo")) == engine.tokens("héllo", bos=True)
        assert sent(engine) == {"model": "m", "prompt": "héllo", "add_special_tokens": True}


async def test_a_vllm_chat_gets_none_after_the_template_and_a_generation_prompt(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        assert await ask(client, engine, CHAT) == engine.chat_tokens(CHAT.messages)
        assert sent(engine) == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "add_generation_prompt": True,
            "add_special_tokens": False,
        }
        open_ended = CHAT._replace(add_generation_prompt=False)
        assert await ask(client, engine, open_ended) == engine.chat_tokens(CHAT.messages, generation=False)


async def test_an_sglang_chat_is_asked_with_the_fields_it_knows(client: HttpClient) -> None:
    with FakeEngine(EngineKind.SGLANG) as engine:
        assert await ask(client, engine, CHAT) == engine.chat_tokens(CHAT.messages)
        assert sent(engine) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("kind", EngineKind)
async def test_tools_and_template_arguments_are_passed_on(client: HttpClient, kind: EngineKind) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with FakeEngine(kind) as engine:
        await ask(client, engine, CHAT._replace(tools=tools, chat_template_kwargs={"enable_thinking": False}))
        assert sent(engine)["tools"] == tools
        assert sent(engine)["chat_template_kwargs"] == {"enable_thinking": False}


NOT_TOKENS = [
    '{"tokens": [1, true]}',
    '{"tokens": [1, 2.0]}',
    '{"tokens": ["1"]}',
    '{"tokens": [-1]}',
    '{"tokens": [4294967296]}',
    '{"tokens": [[1], [2]]}',
    '{"tokens": null}',
    '{"count": 2}',
    "[1, 2]",
    "{",
    "<html>",
    "",
]


async def test_an_answer_without_token_ids_is_not_believed(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        for body in NOT_TOKENS:
            engine.spoil(Reply(body), "/tokenize")
            with pytest.raises(TokeniseError) as caught:
                await ask(client, engine, CompletionText("x"))
            assert caught.value.kind == "engine"


async def test_the_largest_token_id_is_accepted(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        engine.spoil(Reply('{"tokens": [0, 4294967295], "count": 2, "token_strs": null}'), "/tokenize")
        assert await ask(client, engine, CompletionText("x")) == [0, 4294967295]


REFUSALS: list[tuple[CompletionText | ChatText, Reply, str, str]] = [
    (CHAT, Reply('{"error": {"message": "roles must\\nalternate"}}', 400), "template", "400: roles must alternate"),
    (CHAT, Reply('{"message": "no chat template"}', 422), "template", "no chat template"),
    (CHAT, Reply('{"message": "during tokenization: TemplateError"}', 500), "template", "TemplateError"),
    (CHAT, Reply('{"detail": "Not Found"}', 404), "engine", "404: Not Found"),
    (CHAT, Reply('{"error": {"message": "dead"}}', 500), "engine", "dead"),
    (CompletionText("x"), Reply('{"error": {"message": "bad"}}', 400), "engine", "400: bad"),
    (CompletionText("x"), Reply('{"error": {"message": 5}}', 400), "engine", "400: {"),
    (CompletionText("x"), HTML, "engine", "502"),
    (CompletionText("x"), Reply("", 307, headers={"location": "/x"}), "engine", "307"),
]


async def test_a_refusal_keeps_the_engines_words(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        for text, reply, kind, words in REFUSALS:
            engine.spoil(reply, "/tokenize")
            with pytest.raises(TokeniseError) as caught:
                await ask(client, engine, text)
            assert caught.value.kind == kind
            assert words in caught.value.detail


async def test_a_long_refusal_is_shortened(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        engine.spoil(Reply(json.dumps({"message": "x" * 100_000}), 400), "/tokenize")
        with pytest.raises(TokeniseError) as caught:
            await ask(client, engine, CompletionText("x"))
        assert len(caught.value.detail) == 200


async def test_a_slow_engine_is_a_timeout_and_a_dead_one_is_not(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        engine.spoil(Reply("{}", delay_s=1.0), "/tokenize")
        with pytest.raises(TokeniseError) as slow:
            await tokenise(client, EngineAddress(EngineKind.VLLM, engine.url), "m", CHAT, 0.1)
        url = engine.url
    with pytest.raises(TokeniseError) as dead:
        await tokenise(client, EngineAddress(EngineKind.VLLM, url), "m", CHAT, 5)
    assert (slow.value.kind, dead.value.kind) == ("timeout", "engine")


async def test_text_that_is_no_unicode_is_refused_before_it_is_sent(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        with pytest.raises(TokeniseError) as caught:
            await ask(client, engine, CompletionText("\ud800"))
        assert caught.value.kind == "engine"
        assert engine.calls["/tokenize"] == 0


async def test_a_text_is_tokenised_with_the_key_and_a_refusal_says_what_to_set(client: HttpClient) -> None:
    with FakeEngine(EngineKind.SGLANG, api_key="k-1") as engine:
        with pytest.raises(TokeniseError, match="401 Unauthorized: set the instance's api_key") as caught:
            await tokenise(client, EngineAddress(engine.kind, engine.url, "wrong"), "m", CHAT, 5)
        assert caught.value.kind == "engine"
        assert "wrong" not in str(caught.value)
        assert await tokenise(client, EngineAddress(engine.kind, engine.url, "k-1"), "m", CHAT, 5)

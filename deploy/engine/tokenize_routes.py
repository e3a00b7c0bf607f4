"""`/tokenize` and `/detokenize` for both faces."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError
from deploy.engine.bodies import ChatBody, DetokenizeBody, TokenizeBody
from deploy.engine.byte_pairs import BEGIN
from deploy.engine.engine import Engine
from deploy.engine.face import Face
from deploy.engine.openai_routes import json_answer, read_body, rendered


class TokenizeRoutes:
    """The handlers of one server."""

    def __init__(self, engine: Engine, face: Face) -> None:
        self._engine = engine
        self._face = face

    def routes(self) -> list[Route]:
        """Where they are: SGLang has them under /v1 too."""
        return [
            Route(prefix + path, handler, methods=["POST"])
            for path, handler in (("/tokenize", self.tokenize), ("/detokenize", self.detokenize))
            for prefix in ("", "/v1")
        ]

    async def tokenize(self, request: Request) -> Response:
        """The ids that a request with this prompt or chat would have."""
        body = await read_body(request, TokenizeBody)
        self._face.check_model(body)
        tokens = self._tokens(body)
        answer = {"count": len(tokens), "max_model_len": self._engine.settings.context, "tokens": tokens}
        if body.return_token_strs:
            answer["token_strs"] = [self._engine.tokenizer.decode([token]) for token in tokens]
        return json_answer(answer)

    async def detokenize(self, request: Request) -> Response:
        """The text of ids: vLLM calls it `prompt` and keeps special tokens, SGLang calls it `text` and drops them."""
        body = await read_body(request, DetokenizeBody)
        self._face.check_model(body)
        vllm = self._engine.settings.face == "vllm"
        specials = vllm if body.skip_special_tokens is None else not body.skip_special_tokens
        return json_answer(
            {"prompt" if vllm else "text": self._engine.tokenizer.decode(body.tokens, specials=specials)}
        )

    def _tokens(self, body: TokenizeBody) -> list[int]:
        if isinstance(body.prompt, str) and body.messages is None:
            begin = [BEGIN] if body.add_special_tokens is not False else []
            return begin + self._engine.tokenizer.encode(body.prompt)
        if body.messages is None or body.prompt is not None:
            raise ApiError(400, "one of prompt (a text) and messages is needed")
        chat = ChatBody(messages=body.messages, tools=body.tools, add_generation_prompt=body.add_generation_prompt)
        return rendered(self._engine, chat)

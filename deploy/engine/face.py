"""What the OpenAI routes of vLLM and of SGLang do differently."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers

from deploy.engine.api_error import ApiError
from deploy.engine.bodies import Body, GenerationBody
from deploy.engine.cache import Namespace
from deploy.engine.generation import Finished


class Face(Protocol):
    """The ways of one engine."""

    def error(self, error: ApiError) -> dict[str, object]:
        """The body of an error."""

    def check_model(self, body: Body) -> str:
        """The model's name to answer with; ApiError when it is not served."""

    def namespace(self, body: GenerationBody) -> Namespace:
        """What keeps the request's KV apart from equal tokens; ApiError when it cannot be had."""

    def rank(self, headers: Headers, body: GenerationBody) -> int | None:
        """The data-parallel rank asked for."""

    def choice_end(self, finished: Finished | None) -> dict[str, object]:
        """The fields of a choice that tell why it ended; None: it has not yet."""

    def usage(self, finished: list[Finished]) -> dict[str, object]:
        """Usage with the cached tokens (`--enable-prompt-tokens-details`, `--enable-cache-report`)."""

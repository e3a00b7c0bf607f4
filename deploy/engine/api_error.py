"""What a client is told when its request cannot be served."""

from __future__ import annotations

from pydantic import ValidationError


class ApiError(Exception):
    """An HTTP status, a message and a kind as the engines name it."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def detail(self) -> dict[str, object]:
        """As both engines show it, each in an envelope of its own."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}


def unknown_model(name: str) -> ApiError:
    """As both engines say it."""
    return ApiError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")


def queue_full() -> ApiError:
    """SGLang's answer when `--max-queued-requests` wait; vLLM has no such limit."""
    return ApiError(503, "The request queue is full.", "ServiceUnavailableError")


def engine_dead() -> ApiError:
    """vLLM's answer once its engine core has died."""
    return ApiError(
        500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError"
    )


def invalid(error: ValidationError) -> ApiError:
    """A body of the wrong form: 400, as both engines answer."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return ApiError(400, f"{place}: {first['msg']}" if place else first["msg"], param=place or None)

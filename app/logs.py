"""Logs on stderr: one JSON object (or one readable line) per entry, uvicorn's and warnings' entries included."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from app.settings import LogSettings
from app.shown import encodable, json_safe, shown

_QUIET = ("aiohttp", "httpx", "httpcore", "asyncio")
"""Libraries whose entries below a warning say nothing about the fleet."""

_TEXT_CHARS = 1000
_CONSOLE = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
"""Without the values of local variables, which may hold prompts."""


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every logger's entries to `stream` (stderr when None). A later call replaces an earlier one."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings.format)],
        )
    )
    _install(handler, settings)


class Repeats:
    """Lets one entry per key and interval through and counts the others. Forgets the longest unused keys."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic, max_keys: int = 4096) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._max_keys = max_keys
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable) -> int | None:
        """None: hold this entry back. A number: write it; so many were held back since the last one."""
        now = self._clock()
        last, held = self._seen.get(key, (-float("inf"), 0))
        if now - last < self._interval_s:
            self._seen[key] = (last, held + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)
        return held


def _renderers(form: str) -> list[Processor]:
    return [_one_line_values, _text_line] if form == "text" else [structlog.processors.format_exc_info, _json_line]


def _json_line(_: WrappedLogger, __: str, entry: EventDict) -> str:
    """ASCII JSON with time, level and event first. Never fails, whatever the values are."""
    entry.pop("color_message", None)
    ordered = {"time": entry.pop("timestamp", None), "level": entry.pop("level", None), "event": entry.pop("event", "")}
    return json.dumps(json_safe({**ordered, **entry}), allow_nan=False)


def _one_line_values(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    return {
        key: value if key == "exc_info" or isinstance(value, float) else shown(value, _TEXT_CHARS)
        for key, value in entry.items()
        if key != "color_message"
    }


def _text_line(logger: WrappedLogger, method: str, entry: EventDict) -> str:
    return encodable(_CONSOLE(logger, method, entry))


def _install(handler: logging.Handler, settings: LogSettings) -> None:
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    logging.getLogger("uvicorn.access").disabled = not settings.access
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)

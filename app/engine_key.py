"""The bearer token of one engine: from the settings, or from a file that is read again when it changes."""

from __future__ import annotations

import os
import re
import stat
import time

from app.shown import shown

TOKEN = re.compile(r"[\x21-\x7e]{1,1024}")
"""What can be sent as a bearer token, and is taken as one."""

TOKEN_WORDS = "1..1024 visible ASCII characters without spaces"  # noqa: S105

REREAD_S = 2.0
"""A file that looks unchanged is read again after this."""

_MOST_BYTES = 4096


class EngineKey:
    """The token of an instance. `fault` says why its file gives none; the token read last is used on meanwhile.

    Reading is synchronous: the file is small and on this machine. Only regular files are read.
    """

    def __init__(self, key: str | None, file: str | None) -> None:
        self.fault: str | None = None
        self._key = key
        self._file = file
        self._seen: tuple[int, ...] | None = None
        self._read_at = -REREAD_S

    def current(self) -> str | None:
        """The token to send now; None when there is none."""
        if self._file is not None:
            self._look(self._file, time.monotonic())
        return self._key

    def _look(self, file: str, now: float) -> None:
        try:
            found = os.stat(file)
            seen = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
            if seen == self._seen and now - self._read_at < REREAD_S:
                return
            self._key = _token(_content(file, found.st_mode))
        except (OSError, ValueError) as error:
            words = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            self.fault, self._seen = f"api_key_file {shown(file, 200)} {words}", None
            return
        self.fault, self._seen, self._read_at = None, seen, now


def _content(file: str, mode: int) -> bytes:
    if not stat.S_ISREG(mode):
        raise ValueError("is not a regular file")
    with open(file, "rb") as opened:
        return opened.read(_MOST_BYTES)


def _token(content: bytes) -> str:
    """What the file holds, without white space around it. ValueError never repeats it."""
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = ""
    if not TOKEN.fullmatch(text):
        raise ValueError(f"does not hold a key alone ({TOKEN_WORDS})")
    return text

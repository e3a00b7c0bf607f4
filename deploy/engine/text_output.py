"""The text of a generation, token by token: whole characters only, ended by stop texts."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from deploy.engine.byte_pairs import BytePairs


class TextOutput:
    """Turns tokens into text that can be sent: nothing that a later token could still change or cut off."""

    def __init__(self, tokenizer: BytePairs, stops: Sequence[str] = (), *, keep_stop: bool = False) -> None:
        self.stopped_by: str | None = None
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._keep_stop = keep_stop
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token: int) -> str:
        """The text that a token sets free; special tokens have none. After a stop text there is no more."""
        self._held += self._characters.decode(self._tokenizer.decode_bytes([token], specials=False))
        self._look_for_stops()
        if self.stopped_by is not None:
            return self.rest()
        free = len(self._held) - self._perhaps_a_stop()
        text, self._held = self._held[:free], self._held[free:]
        return text

    def rest(self) -> str:
        """What was held back, at the end."""
        if self.stopped_by is None:
            self._held += self._characters.decode(b"", final=True)
        text, self._held = self._held, ""
        return text

    def _look_for_stops(self) -> None:
        """The stop text that begins first ends the text."""
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self._held = self._held[: at + (len(self.stopped_by) if self._keep_stop else 0)]

    def _perhaps_a_stop(self) -> int:
        """The length of the longest end of the held text with which a stop text begins."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        ends = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in ends if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0)

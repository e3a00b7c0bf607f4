"""What was seen of one engine over HTTP and of its links: answers, refusals, silence. Values and transitions only.

`app.availability` judges by it; `app.watch` sees the signs.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Condition(Enum):
    """Of an engine as far as HTTP and its links tell."""

    UNTRIED = auto()
    """Nothing was answered yet, ever."""
    ANSWERING = auto()
    """The last look was answered, and nothing speaks against it since."""
    DOUBTED = auto()
    """A sign against it came (a lost stream, a refused or unanswered question), and no answer to a look since."""
    UNWELCOME = auto()
    """It answers, but no longer takes our key."""
    STARTING = auto()
    """It was down; a new event stream is there, HTTP is not yet."""
    DOWN = auto()
    """It refused twice, was silent for too long, or says itself that it cannot serve."""


class Contact(NamedTuple):
    """The condition, since when (seconds of the loop's clock), and the sign that brought it, in words.

    `served`: whether it ever answered a look. Every method returns what is known after a sign; the same object when
    that is nothing new.
    """

    condition: Condition = Condition.UNTRIED
    since: float = 0.0
    why: str | None = None
    served: bool = False

    @property
    def reachable(self) -> bool:
        """Whether it answers over HTTP, with whatever."""
        return self.condition in (Condition.ANSWERING, Condition.UNWELCOME)

    @property
    def answers(self) -> bool:
        """Whether nothing speaks against it."""
        return self.condition is Condition.ANSWERING

    def looked(self, now: float) -> Contact:
        """A look was answered, and the engine says that it can serve."""
        return self._as(Condition.ANSWERING, now, None)._replace(served=True)

    def refused(self, now: float, why: str) -> Contact:
        """A connection was refused or broken: once may be chance, twice in a row is not."""
        match self.condition:
            case Condition.ANSWERING | Condition.UNWELCOME:
                return self._as(Condition.DOUBTED, now, why)
            case Condition.DOUBTED:
                return self._as(Condition.DOWN, now, why)
            case _:
                return self._replace(why=why) if self.why is None else self

    def silent(self, now: float, why: str, *, too_long: bool) -> Contact:
        """A question was not answered in time; `too_long`: nor was any other for as long as is allowed."""
        if self.condition in (Condition.UNTRIED, Condition.STARTING, Condition.DOWN):
            return self._replace(why=why) if self.why is None else self
        return self._as(Condition.DOWN if too_long else Condition.DOUBTED, now, why)

    def unhealthy(self, now: float, why: str) -> Contact:
        """The engine itself says that it cannot serve (yet)."""
        return self._as(Condition.DOWN if self.served else Condition.STARTING, now, why)

    def unwelcome(self, now: float, why: str) -> Contact:
        """It refuses our key, having taken it before (or having asked for none)."""
        return self._as(Condition.UNWELCOME, now, why)

    def suspected(self, now: float, why: str) -> Contact:
        """Something speaks against it: only a look tells."""
        answered = self.condition in (Condition.ANSWERING, Condition.UNWELCOME)
        return self._as(Condition.DOUBTED, now, why) if answered else self

    def lost_stream(self, now: float) -> Contact:
        """One of its event streams broke off."""
        why = "its event stream broke off"
        refused = self.condition is Condition.UNTRIED and self.why is not None
        down = refused or self.condition is Condition.STARTING
        return self._as(Condition.DOWN, now, why) if down else self.suspected(now, why)

    def found_stream(self, now: float) -> Contact:
        """One of its event streams is there (again)."""
        if self.condition is not Condition.DOWN:
            return self
        why = "its event stream is there again, its HTTP port does not answer yet"
        return self._as(Condition.STARTING if self.served else Condition.UNTRIED, now, why)

    def _as(self, condition: Condition, now: float, why: str | None) -> Contact:
        if condition is self.condition:
            return self if why == self.why else self._replace(why=why)
        return self._replace(condition=condition, since=now, why=why)

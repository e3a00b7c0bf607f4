"""Engines that fail requests while they answer questions: left out for a while, by gateways' reports. Values only."""

from __future__ import annotations

from typing import NamedTuple

from engine.health import SERVER_ERROR


class EjectionRules(NamedTuple):
    """After `failures` in a row an engine is left out for `pause_s`, twice as long each time, up to `pause_max_s`.

    Then one request is a trial; a trial without a report is over after `trial_s`.
    """

    failures: int = 3
    pause_s: float = 5.0
    pause_max_s: float = 300.0
    trial_s: float = 30.0


class Ejection(NamedTuple):
    """What gateways reported of one engine since its last success. Times are seconds of the loop's clock.

    `failures` in a row; `times` it was ejected in a row; `at` and `until` of the last time; `trial_until`: a trial is
    under way so long. Zeros: never.
    """

    failures: int = 0
    times: int = 0
    at: float = 0.0
    until: float = 0.0
    trial_until: float = 0.0
    reason: str = ""

    def failed(self, now: float, reason: str, rules: EjectionRules) -> Ejection:
        """A request failed at the engine. While it is left out, what was sent before does not count again."""
        if now < self.until:
            return self
        failures = self.failures + 1
        if failures < rules.failures and not self.times:
            return self._replace(failures=failures, reason=reason)
        pause_s = min(rules.pause_s * 2.0 ** min(self.times, 64), rules.pause_max_s)
        return Ejection(failures, self.times + 1, now, now + pause_s, 0.0, reason)

    def succeeded(self, now: float) -> Ejection:
        """A request went well; of one that was sent before the engine was left out nothing follows."""
        return self if now < self.until else NEVER

    def sent(self, now: float, rules: EjectionRules) -> Ejection:
        """A request was sent there: the trial, if one is due."""
        return self._replace(trial_until=now + rules.trial_s) if self.on_trial(now) else self

    def on_trial(self, now: float) -> bool:
        """Whether the next request is to be the trial."""
        return self.times > 0 and now >= max(self.until, self.trial_until)

    def bars(self, now: float) -> bool:
        """Whether no request is to be sent there."""
        return self.times > 0 and now < max(self.until, self.trial_until)

    @property
    def why(self) -> str:
        """In words."""
        return f"its last {self.failures} requests failed, as gateways report ({self.reason})"


NEVER = Ejection()


def blame(kind: str | None, status: int | None) -> str | None:
    """What of a reported failure counts against the engine, as a label; None: nothing.

    A client that left is not the engine's fault, nor is an answer of 4xx. `kind` None: the gateway did not say.
    """
    if kind == "aborted" or (kind == "status" and status is not None and status < SERVER_ERROR):
        return None
    return kind or "unknown"

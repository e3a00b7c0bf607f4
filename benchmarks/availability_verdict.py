"""What an availability run has shown, by kind of fault, and what of it must not be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.availability_load import Asked
from benchmarks.availability_proxy import Arrival

LATE_S: Final = 3.0
"""After so long no request may go to a broken engine."""

HEAD: Final = (
    "fault",
    "number",
    "out of the choice after (s)",
    "in again after the heal (s)",
    "last request to it after (s)",
    "in the choice later than 3 s (s)",
    "requests later than 3 s",
    "tokenize calls later than 3 s",
    "errors, being answered",
    "errors, others",
    "promised too much",
)
AFTER_S: Final = 0.5
"""What a fault has broken may be seen by its client so long after the heal, beyond the request's own end."""


@dataclass
class Fault:
    """One that was made. Times are time.monotonic().

    `out_s`: when the routers first left the engine out; `back_s`: when all had it in again after `healed_s`.
    """

    kind: str
    engine: str
    at_s: float
    healed_s: float | None = None
    out_s: float | None = None
    back_s: float | None = None
    in_while_broken_s: float = 0.0
    """How long it was in the choice later than LATE_S after the fault, before it was healed."""


class Failure(NamedTuple):
    """A client's error, and the fault that it belongs to: None when it belongs to none."""

    asked: Asked
    fault: Fault | None
    allowed: bool


class Overpromise(NamedTuple):
    """More promised than delivered. `excused`: the engine broke or was healed while the request was under way."""

    asked: Asked
    excused: bool


@dataclass(frozen=True)
class Run:
    """All that was seen. `arrivals` by engine. `grace_s`: how long before `healed_s` an engine may serve already."""

    faults: Sequence[Fault]
    asked: Sequence[Asked]
    arrivals: Mapping[str, Sequence[Arrival]]
    seconds: float
    grace_s: float = 0.1

    def last_arrival(self, fault: Fault) -> float | None:
        """Seconds from the fault to the last request for an answer that its engine was sent before it was healed."""
        times = [arrival.at_s for arrival in self._sent_to_broken(fault)]
        return max(times) - fault.at_s if times else None

    def late(self, fault: Fault) -> list[Arrival]:
        """Requests for an answer that came to the engine later than LATE_S after its fault, before it was healed."""
        return [arrival for arrival in self._sent_to_broken(fault) if arrival.at_s > fault.at_s + LATE_S]

    def late_questions(self, fault: Fault) -> int:
        """Other POSTs so late: the router's for tokens."""
        return sum(
            arrival.method == "POST" and not arrival.generates and self._was_broken(fault, arrival.at_s, LATE_S)
            for arrival in self.arrivals[fault.engine]
        )

    def failures(self) -> list[Failure]:
        """All errors of clients."""
        return [self._failure(asked) for asked in self.asked if asked.error is not None]

    def overpromises(self) -> list[Overpromise]:
        """All answers of which less was reused than promised."""
        return [
            Overpromise(asked, self._was_shaken(asked))
            for asked in self.asked
            if asked.promised is not None and asked.cached is not None and asked.promised > asked.cached
        ]

    def problems(self) -> list[str]:
        """What must not be, in words; nothing: the run is as it should be."""
        found = [] if self.faults else ["no fault was made"]
        if all(asked.error is not None for asked in self.asked):
            found.append(f"none of {len(self.asked)} requests was answered")
        for fault in self.faults:
            words = f"{fault.kind} of {fault.engine}"
            if fault.healed_s is None or fault.back_s is None:
                found.append(f"{words}: it did not come back")
            if fault.in_while_broken_s > self.grace_s:
                found.append(f"{words}: {fault.in_while_broken_s:.1f} s in the choice later than {LATE_S:g} s after it")
            if late := self.late(fault):
                found.append(f"{words}: {len(late)} requests more than {LATE_S:g} s after it, {self._last(fault)}")
        for failure in self.failures():
            if not failure.allowed:
                after = "no fault" if failure.fault is None else _place(failure.fault, failure.asked)
                found.append(f"{failure.asked.request_id} ({after}): {failure.asked.error}")
        found += [
            f"{asked.request_id} on {asked.instance}: promised {asked.promised}, {asked.cached} delivered"
            for asked, excused in self.overpromises()
            if not excused
        ]
        return found

    def _last(self, fault: Fault) -> str:
        return f"the last {self.last_arrival(fault) or 0.0:.1f} s"

    def _sent_to_broken(self, fault: Fault) -> list[Arrival]:
        return [a for a in self.arrivals[fault.engine] if a.generates and self._was_broken(fault, a.at_s)]

    def _was_broken(self, fault: Fault, at_s: float, later_s: float = 0.0) -> bool:
        """Whether a moment is later than `later_s` after the fault, and before the heal."""
        return fault.at_s + later_s < at_s and (fault.healed_s is None or at_s < fault.healed_s - self.grace_s)

    def _failure(self, asked: Asked) -> Failure:
        """Allowed is only what the engine was answering when it broke."""
        for fault in self.faults:
            if asked.began_s <= fault.at_s <= asked.ended_s and self._was_at(asked, fault):
                return Failure(asked, fault, allowed=True)
        around = [
            f for f in self.faults if f.at_s <= asked.ended_s and asked.began_s <= (f.healed_s or f.at_s) + AFTER_S
        ]
        return Failure(asked, around[-1] if around else None, allowed=False)

    def _was_at(self, asked: Asked, fault: Fault) -> bool:
        """Whether the engine that broke had the request, unanswered, at that moment."""
        before = [
            (arrival.at_s, engine, arrival)
            for engine, arrivals in self.arrivals.items()
            for arrival in arrivals
            if arrival.request_id == asked.request_id and arrival.at_s <= fault.at_s
        ]
        if not before:
            return False
        _, engine, last = max(before, key=lambda one: one[0])
        return engine == fault.engine and (last.done_s is None or last.done_s >= fault.at_s)

    def _was_shaken(self, asked: Asked) -> bool:
        """Whether its engine broke or was healed while the request was under way."""
        return any(
            fault.engine == asked.instance
            and any(asked.began_s <= moment <= asked.ended_s for moment in (fault.at_s, fault.healed_s or fault.at_s))
            for fault in self.faults
        )


def table(run: Run, kinds: Iterable[str]) -> list[dict[str, Any]]:
    """A row per kind of fault, in seconds; `None` where nothing was seen."""
    rows = []
    failures, over = run.failures(), run.overpromises()
    for kind in kinds:
        faults = [fault for fault in run.faults if fault.kind == kind]
        mine = [failure for failure in failures if failure.fault in faults]
        outs = [None if fault.out_s is None else fault.out_s - fault.at_s for fault in faults]
        backs = [f.back_s - f.healed_s if f.back_s is not None and f.healed_s is not None else None for f in faults]
        lasts = [run.last_arrival(fault) for fault in faults]
        rows.append(
            {
                "fault": kind,
                "number": len(faults),
                "out_s": _spread(outs),
                "never_out": outs.count(None),
                "back_s": _spread(backs),
                "last_request_s": _spread(lasts),
                "late_requests": sum(len(run.late(fault)) for fault in faults),
                "late_tokenize": sum(run.late_questions(fault) for fault in faults),
                "in_choice_late_s": round(sum(fault.in_while_broken_s for fault in faults), 2),
                "errors_allowed": sum(failure.allowed for failure in mine),
                "errors_others": sum(not failure.allowed for failure in mine),
                "overpromised": sum(not o.excused and any(_during(o.asked, fault) for fault in faults) for o in over),
            }
        )
    return rows


def totals(run: Run) -> dict[str, Any]:
    """The whole run."""
    failures, over = run.failures(), run.overpromises()
    answered = [asked for asked in run.asked if asked.error is None]
    promised = [asked for asked in answered if asked.promised is not None and asked.cached is not None]
    return {
        "seconds": round(run.seconds, 1),
        "requests": len(run.asked),
        "answered": len(answered),
        "slowest_s": round(max((asked.ended_s - asked.began_s for asked in answered), default=0.0), 2),
        "errors_allowed": sum(failure.allowed for failure in failures),
        "errors_others": sum(not failure.allowed for failure in failures),
        "fallbacks": _counted(asked.fallback for asked in run.asked if asked.fallback),
        "promises": len(promised),
        "promised_tokens": sum(asked.promised or 0 for asked in promised),
        "delivered_tokens": sum(asked.cached or 0 for asked in promised),
        "overpromised": sum(not one.excused for one in over),
        "overpromised_excused": sum(one.excused for one in over),
    }


def printed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table as lines."""
    head = " | ".join(HEAD)
    lines = [head, "|".join(["---"] * (head.count("|") + 1))]
    for row in rows:
        out = _words(row["out_s"]) + (f", never {row['never_out']} times" if row["never_out"] else "")
        cells = [row["fault"], row["number"], out, _words(row["back_s"]), _words(row["last_request_s"])]
        cells += [
            row["in_choice_late_s"],
            row["late_requests"],
            row["late_tokenize"],
            row["errors_allowed"],
            row["errors_others"],
        ]
        lines.append(" | ".join(str(cell) for cell in [*cells, row["overpromised"]]))
    return [f"| {line} |" for line in lines]


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    seen = [value for value in values if value is not None]
    return {"median": round(median(seen), 3), "max": round(max(seen), 3)} if seen else None


def _words(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median']:.2f}, at most {spread['max']:.2f}"


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _during(asked: Asked, fault: Fault) -> bool:
    """Whether it belongs to a fault's time: from the fault until 10 s after the heal, on its engine."""
    return fault.engine == asked.instance and fault.at_s <= asked.began_s <= (fault.healed_s or fault.at_s) + 10.0


def _place(fault: Fault, asked: Asked) -> str:
    return f"{fault.kind} of {fault.engine}, {asked.ended_s - fault.at_s:.1f} s after it"

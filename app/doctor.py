"""Judging a running kvroute from its own answers: what is wrong, what is worth knowing, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from app.asking_kvroute import Kvroute
from app.shown import shown

_SLOW_LAG_S = 5.0


class WorkerLine(NamedTuple):
    """One worker as the table shows it. `wrong`: what must be looked at; `note`: what may be meant so."""

    instance: str
    dp_rank: str
    state: str
    trust: str
    hash_status: str
    lag: str
    wrong: str | None
    note: str | None


class Examination(NamedTuple):
    """Everything found. `faults` are the process's own."""

    faults: list[str]
    workers: list[WorkerLine]

    @property
    def healthy(self) -> bool:
        """Whether nothing must be looked at."""
        return not self.faults and all(line.wrong is None for line in self.workers)

    @property
    def verdict(self) -> str:
        """All in a few words."""
        if not self.healthy:
            return "something is wrong"
        noted = any(line.note is not None for line in self.workers)
        return "nothing is wrong; see the advice" if noted else "all is well"


def examine(kvroute: Kvroute) -> Examination:
    """Ask for health, readiness and instances. Raises NoAnswer."""
    health, _ = kvroute.get("/healthz")
    ready, readiness = kvroute.get("/readyz")
    status, answer = kvroute.get("/instances")
    faults = []
    if health != 200:
        faults.append(f"healthz answers {health}: a task of the process has died; restart it and read its log")
    if ready != 200:
        faults.append(f"readyz answers {ready}: {shown(_waiting(readiness), 300)}")
    faults += _of_store(readiness.get("state_store"))
    if status != 200:
        faults.append(f"instances answers {status}")
    instances = [entry for entry in _list(answer.get("instances")) if isinstance(entry, dict)]
    if status == 200 and not instances:
        faults.append("there are no instances: name them in the settings file, or POST /instances")
    faults += _of_drained_models(instances)
    faults += _of_keys(instances)
    return Examination(faults, [line for instance in instances for line in _lines(instance)])


def table(examination: Examination) -> Table:
    """The workers, one per row."""
    made = Table("instance", "rank", "state", "trust", "hash", "lag", "advice", title="workers")
    for line in examination.workers:
        advice = Text(line.wrong or line.note or "", style="red" if line.wrong else "")
        cells = (line.instance, line.dp_rank, line.state, line.trust, line.hash_status, line.lag)
        made.add_row(*(Text(cell) for cell in cells), advice)
    return made


def _of_store(store: object) -> Iterator[str]:
    if isinstance(store, dict) and store.get("ok") is False:
        yield (
            f"the state store fails ({shown(store.get('op'))}: {shown(store.get('reason'))}): requests are routed, but"
            " nothing is kept for a restart or told to other replicas; see docs/operations.md, When Redis is ill"
        )


def _of_drained_models(instances: list[dict[str, object]]) -> Iterator[str]:
    models: dict[str, list[bool]] = {}
    for instance in instances:
        models.setdefault(shown(instance.get("model")), []).append(instance.get("draining") is True)
    for model, draining in models.items():
        if all(draining):
            yield f"every instance of {model} is draining: its requests get 503; POST /instances/ID/undrain ends it"


def _of_keys(instances: list[dict[str, object]]) -> Iterator[str]:
    for instance in instances:
        if instance.get("unauthorized") is True:
            yield f"{shown(instance.get('id'))} wants a key that it does not get: {shown(instance.get('warning'), 500)}"


def _lines(instance: dict[str, object]) -> Iterator[WorkerLine]:
    for worker in _list(instance.get("workers")):
        if not isinstance(worker, dict):
            continue
        identity = worker.get("hash")
        identity = identity if isinstance(identity, dict) else {}
        lag = worker.get("lag_s")
        advice = worker.get("advice") or identity.get("advice")
        words = shown(advice, 300) if advice else None
        wrong = _wrong(worker, identity, instance.get("reachable") is False)
        yield WorkerLine(
            instance=shown(instance.get("id")),
            dp_rank=shown(worker.get("dp_rank")),
            state=shown(worker.get("state")) + (", draining" if _drains_unseen(instance, worker) else ""),
            trust=shown(worker.get("trust")),
            hash_status=shown(identity.get("status")),
            lag=f"{lag:.2f} s" if isinstance(lag, int | float) else "-",
            wrong=(words or wrong) if wrong else None,
            note=words or _note(worker, identity, instance.get("draining") is True),
        )


def _drains_unseen(instance: dict[str, object], worker: dict[str, object]) -> bool:
    return instance.get("draining") is True and worker.get("state") != "draining"


def _wrong(worker: dict[str, object], identity: dict[str, object], silent: bool) -> str | None:
    match worker.get("state"):
        case "refused":
            return "refused: its events cannot be used, it gets requests by load only"
        case "down" | "starting" | "ejected" as state:
            return f"{state}: {shown(worker.get('why') or 'it cannot serve', 300)}; is it running?"
        case "suspect":
            return f"suspect: {shown(worker.get('why') or 'it does not answer', 300)}"
        case "asleep" | "draining":
            return None
        case "connecting" if silent:
            return "does not answer, neither at its url nor with events: is it running, and is the url right?"
        case "connecting":
            return "no contact with its event stream: check the events endpoint and the engine's --kv-events-config"
    if identity.get("status") == "mismatch" and worker.get("hash_policy") != "translate":
        return "its hash identity is not the expected one"
    if worker.get("trust") == "none":
        return "no events: switch them on with the engine's --kv-events-config"
    return None


def _note(worker: dict[str, object], identity: dict[str, object], draining: bool) -> str | None:
    if identity.get("status") == "mismatch":
        return "its hash identity is not the expected one, which hash.policy: translate allows"
    lag = worker.get("lag_s")
    if worker.get("state") == "asleep":
        return "asleep: it gets no requests until it is woken"
    if draining:
        return "draining: it gets no new requests; POST /instances/ID/undrain ends it"
    if isinstance(lag, int | float) and lag > _SLOW_LAG_S:
        return "its events come late, or the clocks differ"
    if worker.get("wire_errors"):
        return "some of its messages could not be used: see wire_errors in /instances"
    if worker.get("trust") == "partial":
        return "an earlier part of its history was never seen; heals with the next clear"
    return None


def _waiting(readiness: dict[str, object]) -> str:
    waiting = readiness.get("waiting_for", readiness.get("detail", ""))
    return ", ".join(str(item) for item in waiting) if isinstance(waiting, list) else str(waiting)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []

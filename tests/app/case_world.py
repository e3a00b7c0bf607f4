"""What a case's config step describes, made real: an event publisher per rank, HTTP engines, the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from index.worker import EngineKind
from tests.support.case_engine import CaseEngine, start_engine
from tests.support.fake_engine import FakeEngine, Reply
from tests.support.scripted_replay import END_MARKER, Frames, Manner
from tests.support.service import Running, free_url, serving

Step = dict[str, Any]

VISIBLE_S = 3.0
FILLER: list[dict[str, Any]] = []
"""The events of batches that a case presupposes."""


class Surroundings(NamedTuple):
    """How the world outside the case behaves.

    `manner`: what replays get that the case does not script, None: then there is no replay socket. `fixed_ts`: all
    batches bear this time, None: the time they were made. `early`: engines listen before the service starts, and a
    restarted one loses its connections; else it comes up later and restarts behind a proxy. `sections` are further
    settings of the service.
    """

    manner: Manner | None = "engine"
    fixed_ts: float | None = None
    early: bool = True
    sections: Mapping[str, Any] = {}


@dataclass
class CaseWorld:
    """`configure` starts all of it; close `stack` at the end."""

    surroundings: Surroundings
    stack: ExitStack = field(default_factory=ExitStack)
    engines: dict[tuple[str, int], CaseEngine] = field(default_factory=dict)
    http: dict[str, FakeEngine] = field(default_factory=dict)
    _settings: dict[str, Any] = field(default_factory=dict)
    _urls: dict[str, str] = field(default_factory=dict)
    _configured: list[dict[str, Any]] = field(default_factory=list)
    _service: ExitStack = field(default_factory=ExitStack)
    _running: Running | None = None

    @property
    def running(self) -> Running:
        """The service."""
        assert self._running is not None
        return self._running

    def configure(self, config: Step, later: list[Step]) -> None:
        """Start the config step's engines and the service."""
        self._configured = config["instances"]
        ranks = 1 + max((step.get("rank", 0) for step in later), default=0)
        scripted = any(step["op"] in ("replay_reply", "replay_available") or "direction" in step for step in later)
        manner = self.surroundings.manner or ("engine" if scripted else None)
        topics = {step["from"]: step["topic"] for step in later if "topic" in step}
        over_http = any(step["op"] in ("load", "sleep", "wake") or "body" in step for step in later)
        for own in self._configured:
            self._start(own, ranks, manner, shared=len(topics) > 1)
            self._urls[own["id"]] = self._serve_http(own) if over_http else free_url()
        router = config["router"]
        self._settings = {
            "hash": {"seed": router["required_seed"]} if "required_seed" in router else {"policy": "translate"},
            "instances": [self._instance(own, ranks, topics.get(own["id"], "")) for own in self._configured],
            "polling": {"load_interval_s": 0.1},
            "log": {"level": "error"},
            **self.surroundings.sections,
        }
        self.serve(later)

    def serve(self, later: list[Step]) -> None:
        """Start the service, or start it again, with the replays that `later` scripts up to the next restart."""
        self.stop()
        self._script(later)
        if not self.surroundings.early:
            for engine in self.engines.values():
                engine.socket.close()
        self._service = self.stack.enter_context(ExitStack())
        self._running = self._service.enter_context(serving(self._settings))
        for engine in self.engines.values():
            engine.socket.open()
        self.wait_for_streams()

    def stop(self) -> None:
        """End the service."""
        self._service.close()

    def replace(self, instance: str) -> CaseEngine:
        """The instance comes back under its name as another pod; returns the former one's engine."""
        former = self.engines[instance, 0]
        own = next(one for one in self._configured if one["id"] == instance)
        self.remove(instance)
        self._start(own, 1, self.surroundings.manner, shared=False)
        self.running.http.post("/instances", json=self._instance(own, 1, "")).raise_for_status()
        self.wait_for_streams()
        return former

    def remove(self, instance: str) -> None:
        """Take the instance out of the service."""
        self.running.http.delete(f"/instances/{instance}").raise_for_status()
        self.engines = {key: engine for key, engine in self.engines.items() if key[0] != instance}

    def own_names(self, text: str) -> str:
        """A text with the addresses that instances have in the case replaced by those they have here."""
        for own in self._configured:
            text = text.replace(urlsplit(own["address"]).netloc, urlsplit(self._urls[own["id"]]).netloc)
        return text

    def pass_by(self, name: str, events: list[dict[str, Any]]) -> None:
        """An instance that comes, publishes one batch and is removed."""
        own = {"id": name, "address": free_url()}
        self._urls[name] = own["address"]
        with ExitStack() as stack:
            engine = self.engines[name, 0] = start_engine(stack, 1, None, self.surroundings.fixed_ts)[0]
            self.running.http.post("/instances", json=self._instance(own, 1, "")).raise_for_status()
            engine.socket.publisher.wait_for_subscriber()
            engine.batch(0, events)
            self.settle()
            self.remove(name)

    def settle(self) -> None:
        """Until every batch that was published is applied, or VISIBLE_S have passed."""
        for (instance, rank), engine in self.engines.items():
            engine.socket.open()
            if engine.last_seq is not None:
                last_seq = engine.last_seq
                self.wait(lambda i=instance, r=rank, s=last_seq: self.worker(i, r)["seq"] == s)  # type: ignore[misc]

    def wait_for_streams(self) -> None:
        """Until every rank's event stream is connected and subscribed to."""
        for instance, rank in self.engines:
            self.wait(lambda i=instance, r=rank: self.worker(i, r)["state"] == "live")  # type: ignore[misc]
        for engine in self.engines.values():
            engine.socket.publisher.wait_for_subscriber()

    def wait_for_loads(self) -> None:
        """Until every engine's load was read twice."""
        for engine in self.http.values():
            before = engine.calls["/metrics"] + engine.calls["/v1/loads"]
            self.wait(lambda e=engine, n=before: e.calls["/metrics"] + e.calls["/v1/loads"] >= n + 4)  # type: ignore[misc]

    def wait(self, true: Callable[[], bool]) -> None:
        """Until something is true, or VISIBLE_S have passed: what is asked afterwards will show."""
        end = time.monotonic() + VISIBLE_S
        while not true() and time.monotonic() < end:
            time.sleep(0.01)

    def worker(self, instance: str, rank: int = 0) -> dict[str, Any]:
        """A rank as the service shows it."""
        workers = self.running.instance(instance)["workers"]
        return next((one for one in workers if one["dp_rank"] == rank), {"seq": None, "state": None})

    def _start(self, own: dict[str, Any], ranks: int, manner: Manner | None, shared: bool) -> None:
        if "kv_events" in own:
            return
        if shared and self.engines:
            socket = next(iter(self.engines.values())).socket
            self.engines[own["id"], 0] = CaseEngine(socket, None, self.surroundings.fixed_ts)
            return
        started = start_engine(self.stack, ranks, None if shared else manner, self.surroundings.fixed_ts)
        self.engines |= {(own["id"], rank): engine for rank, engine in enumerate(started)}

    def _serve_http(self, own: dict[str, Any]) -> str:
        """An engine over HTTP. Its chat template fails: texts occur only in cases about that."""
        engine = FakeEngine(EngineKind(own.get("engine", "vllm")))
        engine.spoil(
            Reply('{"error": {"message": "unknown role", "type": "BadRequestError", "code": 400}}', 400), "/tokenize"
        )
        self.http[own["id"]] = self.stack.enter_context(engine)
        return engine.url

    def _instance(self, own: dict[str, Any], ranks: int, topic: str) -> dict[str, Any]:
        engine = self.engines.get((own["id"], 0))
        settings = {
            "id": own["id"],
            "engine": own.get("engine", "vllm"),
            "model": own.get("model", "m"),
            "url": _on_loopback(own["address"]) if "kv_events" in own else self._urls[own["id"]],
            "events": own["kv_events"] if engine is None else engine.socket.publisher.events,
            "replay": None if engine is None or engine.replay is None else engine.replay.endpoint,
            "topic": topic,
            "dp_size": ranks,
            "block_size": own.get("block_size"),
        }
        return settings

    def _script(self, later: list[Step]) -> None:
        start: int | None = None
        for step in later:
            if step["op"] == "router_restart":
                return
            if step["op"] == "replay_reply":
                end: list[Frames] = [END_MARKER] if step["end"] else []
                self.engines[step["from"], step["rank"]].script(step["start"], step["batches"], end)
            elif step.get("direction", "").startswith("router"):
                start = int(step["frames_hex"][-1], 16)
            elif "direction" in step:
                assert start is not None
                self._exchange(start, step["frames_hex"])

    def _exchange(self, start: int, texts: list[str]) -> None:
        """One frame list of a written-out answer; what was published before its start is in the buffer."""
        engine = next(iter(self.engines.values()))
        assert engine.replay is not None
        last_seq = engine.last_seq or start
        engine.keep([{"seq": seq, "events": FILLER} for seq in range(start)])
        words = {"<topic>": b"", "<payload>": engine.sent[0]}
        frames: Frames = tuple(words[text] if text in words else bytes.fromhex(text) for text in texts)
        engine.replay.script.setdefault(start, []).append(frames)
        numbers = (int(text, 16) for text in texts if len(text) == 16 and text != "f" * 16)
        engine.last_seq = max([last_seq, *numbers])


def _on_loopback(url: str) -> str:
    """A literal address of another host as one of this machine; nothing is sent anywhere else."""
    return url.replace("[fd00::5]", "[::1]").replace("10.0.0.7", "127.0.0.7")

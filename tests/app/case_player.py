"""Plays a case of `tests/golden/cases.json` against the real service, step by step, as engines and a gateway would.

The steps were written for any router, so some need reading:

- An instance listens at a free port; requests that name it by its `address` are given the address it has here.
- `replay_reply` is known from the start (a router asks at once), for its start number alone; what other starts get is
  up to the surroundings. Replies behind a `router_restart` are not known before it.
- `engine_restart` and `disconnect` close the event socket until the instance's next message, or until somebody asks.
- `frames` with a direction are a replay exchange: the batches before its start were published and are in the buffer.
- `wait_s` and `rate` end after LONGEST_WAIT_S; repetitions are cut to MOST_REPEATS.
- Before anything is asked, all published batches are awaited, for at most `case_world.VISIBLE_S`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec

from index.block_hash import HashIdentity, chain, wire_uint64
from tests.app.case_http import Answer, send_http
from tests.app.case_world import CaseWorld, Step, Surroundings
from tests.support.case_engine import CaseEngine
from tests.support.fake_engine import RankLoad

LONGEST_WAIT_S = 2.5
MOST_REPEATS = 1_000
RANDOM_SEED = "b5f1" * 16
"""What an engine without PYTHONHASHSEED may have drawn for a fast hash."""


@dataclass
class CasePlayer:
    """`with CasePlayer(case, surroundings) as player: player.play()`; the service runs until the block ends."""

    case: dict[str, Any]
    surroundings: Surroundings
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    former: dict[str, CaseEngine] = field(default_factory=dict)
    happens: Callable[[Step], None] = lambda step: None
    """What is done to the state store by the steps that say so."""
    _later: list[Step] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.world = CaseWorld(self.surroundings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.world.stack.close()

    def play(self) -> None:
        """Every step, in order; afterwards everything published is applied."""
        steps: list[Step] = self.case["situation"]
        for position, step in enumerate(steps):
            self._later = steps[position + 1 :]
            self.do(step)
        self.world.settle()

    def do(self, step: Step) -> None:
        """One step."""
        act: Callable[[Step], None] | None = getattr(self, f"_op_{step['op']}", None)
        assert act is not None, f"nobody plays a step {step['op']!r}"
        act(step)

    def ask(self, **request: Any) -> Answer:
        """`POST /route` with explanation."""
        began = time.perf_counter()
        answer = self.world.running.http.post("/route", json={"explain": True, **request})
        return Answer(request, answer.status_code, answer.json(), time.perf_counter() - began)

    # Events

    def _op_config(self, step: Step) -> None:
        self.world.configure(step, self._later)

    def _op_batch(self, step: Step) -> None:
        engine = self.former[step["uid"]] if step.get("uid") in self.former else self._engine(step)
        engine.batch(step["seq"], step["events"], step.get("topic", ""))

    def _op_wire(self, step: Step) -> None:
        self._engine(step).send(step["seq"], msgspec.msgpack.encode(step["payload_as_json"]))

    def _op_frames(self, step: Step) -> None:
        if "direction" in step:
            return  # known since the config
        words = {"<payload only>": msgspec.msgpack.encode([1.0, [], 0])}
        self._engine(step).send_frames([words.get(text) or bytes.fromhex(text) for text in step["frames_hex"]])

    def _op_replay_reply(self, step: Step) -> None:
        """Known since the config or the router's restart."""

    def _op_replay_available(self, step: Step) -> None:
        self._engine(step).keep(step["batches"])

    def _op_race(self, step: Step) -> None:
        self.world.settle()
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.do, step["steps"]))

    def _op_rate(self, step: Step) -> None:
        """A flood from the first instance, 100 events per batch, each a prompt of its own."""
        engine, size = next(iter(self.world.engines.values())), step["tokens_per_event"]
        began, batches = time.monotonic(), 0
        while time.monotonic() < began + min(step["seconds"], LONGEST_WAIT_S):
            first = batches * 100
            assert engine.last_seq is not None
            engine.batch(engine.last_seq + 1, [_prompt_of((first + n) * size + 10_000, size) for n in range(100)])
            batches += 1
            time.sleep(max(0.0, began + batches * 100 / step["events_per_s"] - time.monotonic()))

    # Lives

    def _op_engine_restart(self, step: Step) -> None:
        self.world.settle()
        if step["id"] in self.world.http:
            self.world.http[step["id"]].restart()
        self.world.engines[step["id"], 0].restart(lose_connection=self.surroundings.early)

    def _op_disconnect(self, step: Step) -> None:
        self.world.engines[step["id"], 0].socket.close()

    def _op_instance_removed(self, step: Step) -> None:
        self.world.settle()
        self.world.remove(step["id"])

    def _op_instance_replaced(self, step: Step) -> None:
        self.world.settle()
        self.former[step["uid_old"]] = self.world.replace(step["id"])

    def _op_router_restart(self, step: Step) -> None:
        self.world.settle()
        for missed in step.get("missed", []):
            self._engine(missed).keep([missed])
        self.world.stop()
        self.happens(step)
        self.world.serve(self._later)

    def _op_fault(self, step: Step) -> None:
        self.happens(step)

    def _op_fault_end(self, step: Step) -> None:
        self.happens(step)

    def _op_load(self, step: Step) -> None:
        for instance, load in step.items():
            if instance != "op":
                numbers = {key: None if value is None else float(value) for key, value in load.items()}
                self.world.http[instance].loads = {0: RankLoad(**numbers)}
        self.world.wait_for_loads()

    def _op_sleep(self, step: Step) -> None:
        self.world.settle()
        self.world.http[step["id"]].asleep = step["level"] >= 1
        self.world.wait_for_loads()

    def _op_wake(self, step: Step) -> None:
        self.world.http[step["id"]].asleep = False
        self.world.wait_for_loads()

    # Requests

    def _op_route(self, step: Step) -> None:
        self.world.settle()
        self._keep(step["label"], self.ask(**self._request(step["request"])))

    def _op_feedback(self, step: Step) -> None:
        asked = self.answers[step["label"]][0].body
        report = {"cached_tokens": step["engine_cached_tokens"], "prompt_tokens": asked["prompt_tokens"]}
        path = f"/requests/{asked['request_id']}/finished"
        self.world.running.http.post(path, json=report).raise_for_status()

    def _op_http(self, step: Step) -> None:
        self.world.settle()
        self._keep(step["label"], send_http(self.world.running.url, step))

    def _op_during(self, step: Step) -> None:
        """While all the case's plain requests are sent once more."""
        others = [one for one in self.case["situation"] if one["op"] == "http"]
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(send_http, self.world.running.url, one) for one in others]
            while not all(one.done() for one in asked):
                self._keep(step["label"], send_http(self.world.running.url, step))

    def _op_repeat(self, step: Step) -> None:
        times, phrases = min(step["times"], MOST_REPEATS), self._phrases()
        for number in range(times):
            if isinstance(step["of"], str):
                phrases[step["of"]](number)
            else:
                self.do(step["of"])

    def _op_concurrent(self, step: Step) -> None:
        self.world.settle()
        with ThreadPoolExecutor(step["times"]) as pool:
            list(pool.map(self.do, [step["of"]] * step["times"]))

    # Others

    def _op_note(self, step: Step) -> None:
        """For readers."""

    def _op_wait_s(self, step: Step) -> None:
        time.sleep(min(step["s"], LONGEST_WAIT_S))

    def _op_check(self, step: Step) -> None:
        """Checks are the cases' own; here only what must be published for them."""
        self.world.settle()
        if step["what"] == "admission":
            for own in self.case["situation"][0]["instances"]:
                self._publish_root(own["id"], HashIdentity(own["algo"], own["seed"]))

    def _publish_root(self, instance: str, identity: HashIdentity) -> None:
        tokens = [1, 2, 3, 4, 5, 6, 7, 8]
        if identity.seed is None and identity.algorithm.startswith("xxhash"):
            identity = identity._replace(seed=RANDOM_SEED)
        hashes = [wire_uint64(digest) for digest in chain(identity, tokens, 4)]
        self.world.engines[instance, 0].batch(0, [_stored(hashes, None, tokens, 4)])
        self.world.settle()

    def _phrases(self) -> dict[str, Callable[[int], None]]:
        return {
            "store a new hash, remove it": self._store_and_remove,
            "add instance, 100 blocks, remove instance": self._come_and_go,
        }

    def _store_and_remove(self, number: int) -> None:
        engine = next(iter(self.world.engines.values()))
        block = _prompt_of(number * 4 + 10_000, 4)
        engine.batch(number, [block, {"type": "BlockRemoved", "block_hashes": block["block_hashes"], "medium": "GPU"}])

    def _come_and_go(self, number: int) -> None:
        """Every fiftieth time only: each needs sockets of its own."""
        if number % 50 == 0:
            self.world.pass_by(f"passing-{number}", [_prompt_of(n * 4 + 10_000, 4) for n in range(100)])

    def _engine(self, step: Step) -> CaseEngine:
        return self.world.engines[step["from"], step.get("rank", 0)]

    def _keep(self, label: str, answer: Answer) -> None:
        self.answers.setdefault(label, []).append(answer)

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of a case's request under the names of `POST /route`."""
        body = {key: value for key, value in request.items() if key not in ("unique_prompt", "mm", "mm_unknown")}
        if request.get("unique_prompt"):
            body["token_ids"] = random.sample(range(100_000), 40)
        if "mm" in request:
            body["mm_items"] = [
                {"hash": one["id"], "offset": one["offset"], "length": one["length"]} for one in request["mm"]
            ]
        if "prompt_tokens_from_router" in request:
            body["token_ids"] = body.pop("prompt_tokens_from_router")
        if "candidates" in request:
            body["candidates"] = [self.world.own_names(name) for name in request["candidates"]]
        return body


def _prompt_of(first: int, size: int) -> dict[str, Any]:
    """A store of `size` tokens from `first` on, as one block of 4 or as pages of 1."""
    tokens = list(range(first, first + size))
    return _stored([first], None, tokens, 4) if size == 4 else _stored(tokens, None, tokens, 1)


def _stored(hashes: list[int], parent: int | None, tokens: list[int], block_size: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent": parent,
        "token_ids": tokens,
        "block_size": block_size,
        "lora": None,
        "medium": "GPU",
    }

"""What is kept of the fleet is what would be found anew, whatever was set and however much time has passed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.candidates import candidates_for
from app.contact import Contact
from app.ejection import EjectionRules
from app.fleet import Fleet
from app.instance import NO_FACTS, Instance
from app.instance_settings import InstanceSettings
from app.route_body import read_route_request
from app.route_request import RouteRequest
from app.standings import KEPT, Standings
from engine.load import EngineLoad
from index.worker import Trust, Worker
from router.route import Router
from router.settings import RouterSettings

RULES = EjectionRules()
WAYS = [
    b"model=m",
    b"model=m&exclude=%5B%22a%22,%22b%22%5D",
    b"model=m&candidates=%5B%22a%22,%22http://c%22,%22other%22%5D",
    b"model=m&candidates=%5B%5D",
    b"model=m&selector=%7B%22zone%22:%22x%22%7D",
    b"model=m&lora=adapter",
]


def asked(query: bytes) -> RouteRequest:
    return read_route_request(b"\1\0\0\0", "application/octet-stream", query, 10)


def add(fleet: Fleet, name: str, dice: Random) -> Instance:
    kind = dice.choice(["vllm", "sglang"])
    labels = dice.choice([{}, {"zone": "x"}])
    values = {"id": name, "engine": kind, "model": "m", "url": f"http://{name}", "labels": labels}
    if dice.random() < 0.5:
        values["events"] = "tcp://h:1"
    return fleet.add(InstanceSettings.model_validate(values | {"dp_size": dice.choice([1, 2])}))


class World:
    """A fleet to which things happen."""

    def __init__(self, dice: Random) -> None:
        self.dice, self.now = dice, 100.0
        self.fleet = Fleet()
        self.standings = Standings(self.fleet, Router(RouterSettings()))
        for name in "abcd"[: dice.randint(1, 4)]:
            add(self.fleet, name, dice)

    def happens(self) -> None:
        dice = self.dice
        self.now += dice.choice([0.0, 0.0, 0.01, 1.0, 1.0, 3.0, 7.0])
        instance = dice.choice(list(self.fleet))
        tracked = dice.choice(list(instance.workers.values()))
        step = dice.randrange(19)
        match step:
            case 0:
                instance.draining = not instance.draining
            case 1 | 2:
                instance.contact = self.contact_after(instance.contact)
            case 3 | 4:
                tracked.link_up = dice.random() < 0.5
                tracked.link_lost_at = None if tracked.link_up else self.now
                tracked.catching_up, tracked.behind = dice.random() < 0.5, dice.random() < 0.5
            case 5:
                tracked.trust = dice.choice(list(Trust))
            case 6 | 7:
                tracked.load = dice.choice([None, EngineLoad(float(dice.randint(0, 2)), 0.0, None, None)])
                tracked.load_at = self.now
            case 8:
                tracked.asleep = dice.random() < 0.5
            case 9:
                tracked.doubtful = dice.random() < 0.5
                tracked.mixes_namespaces = dice.random() < 0.5
            case 10:
                tracked.refused = dice.random() < 0.5
            case 11:
                tracked.batches += 1
            case 12:
                tracked.usable_batches = tracked.usable_batches + 1 if dice.random() < 0.7 else 0
            case 13:
                instance.unusable = dice.choice([None, "too old"])
            case 14:
                self.fleet_changes(instance)
            case 16 | 17 | 18:
                failed = instance.ejection.failed(self.now, "connect", RULES)
                went_well = instance.ejection.succeeded(self.now)
                instance.ejection = dice.choice([failed, failed, went_well, instance.ejection.sent(self.now, RULES)])
            case 15:
                instance.facts = NO_FACTS._replace(
                    adapters=dice.choice([{}, {"adapter": "/p"}]),
                    models=dice.choice([(), ("m",), ("other",)]),
                    dynamo_format=dice.choice([None, False]),
                )
                self.fleet.changed()

    def contact_after(self, contact: Contact) -> Contact:
        now = self.now
        return self.dice.choice(
            [
                contact.looked(now),
                contact.refused(now, "refused"),
                contact.silent(now, "silent", too_long=self.dice.random() < 0.5),
                contact.unhealthy(now, "503"),
                contact.unwelcome(now, "401"),
                contact.lost_stream(now),
                contact.found_stream(now),
            ]
        )

    def fleet_changes(self, instance: Instance) -> None:
        if self.dice.random() < 0.5 and len(self.fleet) > 1:
            self.fleet.remove(instance.id)
        elif 5 not in instance.workers:
            self.fleet.add_worker(instance, 5)
        else:
            self.fleet.remove_worker(instance, 5)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_is_kept_is_what_would_be_found_anew(seed: int) -> None:
    dice = Random(seed)
    world = World(dice)
    for _ in range(60):
        world.happens()
        request = asked(dice.choice(WAYS))
        target = world.fleet.target("m")
        assert target is not None
        eligible = world.standings.eligible(request, target, world.now)
        anew = [one for one in candidates_for(request, target, {}, world.now) if one.why is None]
        kept = [] if eligible.standing is None else eligible.standing.candidates
        assert kept == anew
        assert [eligible.chosen(one.worker, None, reads_cache=True) for one in anew] == anew


@pytest.mark.parametrize("field", ["draining", "unusable"])
def test_setting_an_instance_is_noted_once_and_only_when_it_changes(field: str) -> None:
    fleet = Fleet()
    instance = add(fleet, "a", Random(1))
    before = fleet.changes.count
    setattr(instance, field, "changed")
    setattr(instance, field, "changed")
    instance.tried = True
    assert fleet.changes.since(before) == ["a"]


def test_counting_batches_is_noted_only_where_it_tells_something() -> None:
    fleet = Fleet()
    tracked = add(fleet, "a", Random(1)).workers[0]
    before = fleet.changes.count
    for _ in range(100):
        tracked.batches += 1
        tracked.usable_batches += 1
    assert fleet.changes.since(before) == [Worker("a", 0)] * 2


def test_ever_new_ways_to_ask_are_forgotten_again() -> None:
    fleet = Fleet()
    add(fleet, "a", Random(1))
    standings, target = Standings(fleet, Router(RouterSettings())), fleet.target("m")
    assert target is not None
    for number in range(3 * KEPT):
        request = asked(b"model=m")._replace(exclude=(str(number),))
        first = standings.eligible(request, target, 1.0)
        assert standings.eligible(request, target, 1.0) is first
    assert len(standings._kept) == KEPT
    many = asked(b"model=m")._replace(exclude=tuple(map(str, range(1000))))
    assert standings.eligible(many, target, 1.0) is not standings.eligible(many, target, 1.0)

"""What a sign makes of what is known of an engine: every condition, every sign."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contact import Condition, Contact

LIVE = Contact().looked(1.0)
DOUBTED = LIVE.refused(2.0, "refused")
DOWN = DOUBTED.refused(3.0, "refused")
STARTING = DOWN.found_stream(4.0)

SIGNS: dict[str, Callable[[Contact, float], Contact]] = {
    "looked": Contact.looked,
    "refused": lambda contact, now: contact.refused(now, "refused"),
    "silent": lambda contact, now: contact.silent(now, "no answer", too_long=False),
    "silent for long": lambda contact, now: contact.silent(now, "no answer", too_long=True),
    "unhealthy": lambda contact, now: contact.unhealthy(now, "answers 503"),
    "unwelcome": lambda contact, now: contact.unwelcome(now, "answers 401"),
    "suspected": lambda contact, now: contact.suspected(now, "a gateway says so"),
    "lost stream": Contact.lost_stream,
    "found stream": Contact.found_stream,
}


@pytest.mark.parametrize(
    ("before", "sign", "after"),
    [
        (Contact(), "looked", Condition.ANSWERING),
        (Contact(), "refused", Condition.UNTRIED),
        (Contact(), "silent for long", Condition.UNTRIED),
        (Contact(), "unhealthy", Condition.STARTING),
        (Contact(), "lost stream", Condition.UNTRIED),
        (Contact().refused(1.0, "refused"), "lost stream", Condition.DOWN),
        (LIVE, "refused", Condition.DOUBTED),
        (LIVE, "silent", Condition.DOUBTED),
        (LIVE, "silent for long", Condition.DOWN),
        (LIVE, "unhealthy", Condition.DOWN),
        (LIVE, "unwelcome", Condition.UNWELCOME),
        (LIVE, "suspected", Condition.DOUBTED),
        (LIVE, "lost stream", Condition.DOUBTED),
        (LIVE, "found stream", Condition.ANSWERING),
        (DOUBTED, "looked", Condition.ANSWERING),
        (DOUBTED, "refused", Condition.DOWN),
        (DOUBTED, "silent", Condition.DOUBTED),
        (DOUBTED, "silent for long", Condition.DOWN),
        (DOUBTED, "found stream", Condition.DOUBTED),
        (DOWN, "looked", Condition.ANSWERING),
        (DOWN, "found stream", Condition.STARTING),
        (DOWN, "suspected", Condition.DOWN),
        (STARTING, "refused", Condition.STARTING),
        (STARTING, "silent for long", Condition.STARTING),
        (STARTING, "lost stream", Condition.DOWN),
        (STARTING, "looked", Condition.ANSWERING),
    ],
)
def test_a_sign_leads_from_one_condition_to_the_next(before: Contact, sign: str, after: Condition) -> None:
    assert SIGNS[sign](before, 9.0).condition is after


@given(st.lists(st.sampled_from(sorted(SIGNS)), max_size=30))
def test_only_an_answered_look_makes_an_engine_eligible_and_the_time_of_a_condition_is_that_of_its_sign(
    signs: list[str],
) -> None:
    contact = Contact()
    for now, sign in enumerate(signs, start=1):
        after = SIGNS[sign](contact, float(now))
        if after.answers and not contact.answers:
            assert sign == "looked"
        assert after.since == (contact.since if after.condition is contact.condition else float(now))
        assert after.served == (contact.served or sign == "looked")
        assert after.condition is not Condition.UNTRIED or not after.served
        assert (after.why is None) <= (after.answers or after.condition is Condition.UNTRIED)
        contact = after

"""Request ids: ULIDs."""

from __future__ import annotations

import re

from router.request_id import new_request_id


def test_an_id_is_26_characters_of_crockfords_base_32() -> None:
    assert re.fullmatch(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", new_request_id(1_750_000_000.5))


def test_the_time_is_in_front_as_the_ulid_text_has_it() -> None:
    assert new_request_id(1469918176.385).startswith("01ARYZ6S41")


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [new_request_id(1_750_000_000 + number / 1000) for number in range(0, 1000, 2)]
    assert ids == sorted(ids)
    assert len({new_request_id(1.0) for _ in range(10_000)}) == 10_000

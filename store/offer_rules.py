"""Which of two snapshots of a worker is stored: the rules of `StateStore.offer`. `redis_scripts.OFFER` mirrors them."""

from __future__ import annotations

from typing import NamedTuple

from store.state import STALE_MS, Lineage, Offer, Snapshot


class Tip(NamedTuple):
    """What is stored: the snapshot's lineage, number and fingerprint; `top_*` is the later of it and the log's end."""

    lineage: Lineage
    seq: int
    top_seq: int
    top_ts_ms: int
    fingerprint: str | None


def judge(stored: Tip | None, offered: Snapshot) -> Offer:
    """ACCEPTED, KEPT or BETTER. `stored` is None when nothing readable is stored."""
    if stored is None:
        return Offer.ACCEPTED
    if stored.lineage == offered.lineage:
        return Offer.KEPT if stored.seq >= offered.seq else Offer.ACCEPTED
    if _newer_process(stored, offered) or _knows_more(stored, offered) or _abandoned(stored, offered):
        return Offer.ACCEPTED
    return Offer.BETTER


def _newer_process(stored: Tip, offered: Snapshot) -> bool:
    """Later, and from a process that counts from 0 anew or calls itself otherwise."""
    other = stored.fingerprint and offered.fingerprint and stored.fingerprint != offered.fingerprint
    return offered.ts_ms > stored.top_ts_ms and (offered.seq < stored.top_seq or bool(other))


def _knows_more(stored: Tip, offered: Snapshot) -> bool:
    """Begins no later in the engine's history and goes at least as far."""
    return (
        offered.lineage.origin_seq <= stored.lineage.origin_seq
        and offered.seq >= stored.top_seq
        and offered.ts_ms >= stored.top_ts_ms
    )


def _abandoned(stored: Tip, offered: Snapshot) -> bool:
    return stored.top_ts_ms + STALE_MS < offered.ts_ms

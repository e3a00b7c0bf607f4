"""Which worker served a session last."""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_128_digest

from index.worker import Worker


class SessionAffinity:
    """Session -> worker, per namespace. At most `limit` sessions, each forgotten `ttl_s` after its last request.

    Sessions are kept as 16-byte digests, so a client's long id costs no memory.
    """

    def __init__(self, ttl_s: float, limit: int) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._sessions: OrderedDict[bytes, tuple[Worker, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def worker(self, namespace: str, session_id: str, now: float) -> Worker | None:
        """The session's worker, None when it has none (any more)."""
        worker, expires = self._sessions.get(_key(namespace, session_id), (None, 0.0))
        return worker if expires > now else None

    def remember(self, namespace: str, session_id: str, worker: Worker, now: float) -> None:
        """The session was sent to this worker now."""
        key = _key(namespace, session_id)
        self._sessions[key] = (worker, now + self._ttl_s)
        self._sessions.move_to_end(key)
        self._drop_old(now)

    def forget(self, worker: Worker) -> None:
        """Drop the worker's sessions: it is gone, or came back empty."""
        for key in [key for key, (holder, _) in self._sessions.items() if holder == worker]:
            del self._sessions[key]

    def _drop_old(self, now: float) -> None:
        while self._sessions:
            key, (_, expires) = next(iter(self._sessions.items()))
            if expires > now and len(self._sessions) <= self._limit:
                return
            del self._sessions[key]


def _key(namespace: str, session_id: str) -> bytes:
    space = namespace.encode("utf-8", "surrogatepass")
    return xxh3_128_digest(len(space).to_bytes(4, "little") + space + session_id.encode("utf-8", "surrogatepass"))

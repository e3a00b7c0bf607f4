"""Labels of errors, also of servers that hide a script's error code in its text, and texts that hold no contents."""

from __future__ import annotations

import pytest
import redis.exceptions as known

from store.redis_errors import reason_of, state_error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (known.ConnectionError("Connection closed by server."), "connection"),
        (ConnectionRefusedError(111, "refused"), "connection"),
        (OSError("no route"), "connection"),
        (known.TimeoutError("Timeout reading"), "timeout"),
        (TimeoutError(), "timeout"),
        (known.AuthenticationError("invalid username-password pair"), "auth"),
        (known.NoPermissionError("this user has no permissions"), "permission"),
        (known.BusyLoadingError("loading the dataset"), "loading"),
        (known.OutOfMemoryError("command not allowed"), "oom"),
        (known.ResponseError("Error running script: @user_script:1: -OOM command not allowed"), "oom"),
        (known.ReadOnlyError("You can't write against a read only replica."), "readonly"),
        (known.ResponseError("@user_script: 1: -READONLY You can't write"), "readonly"),
        (known.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "disk"),
        (known.ResponseError("WRONGTYPE Operation against a key"), "type"),
        (known.ResponseError("BUSY Redis is busy running a script."), "busy"),
        (known.ResponseError("CLUSTERDOWN Hash slot not served"), "cluster"),
        (known.ClusterDownError("CLUSTERDOWN The cluster is down"), "cluster"),
        (known.SlotNotCoveredError("slot"), "cluster"),
        (known.ResponseError("MASKED nonsense"), "other"),
        (AttributeError("read"), "other"),
    ],
)
def test_errors_are_labelled(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    assert state_error("append", error).reason == reason


def test_texts_that_may_repeat_a_command_are_left_out() -> None:
    error = state_error("offer", known.RedisClusterException("No targets were found to execute (b'tokens')"))
    assert error.detail == "RedisClusterException"
    assert str(error) == "offer: RedisClusterException"


def test_long_texts_are_cut() -> None:
    assert len(state_error("load", known.ResponseError("x" * 5000)).detail) == 200

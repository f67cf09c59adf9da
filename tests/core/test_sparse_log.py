"""Trouble is logged once a minute, and counted meanwhile."""

from __future__ import annotations

import logging

import pytest

from penstock.core.rate_limited_log import RateLimitedLog, RateLimitedLogs
from penstock.testing.clock import VirtualClock


def test_the_first_line_comes_at_once_and_the_next_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    log = RateLimitedLog(logging.getLogger("trouble"), clock)
    for topic in range(1_000):
        log.warning("topic %d: no file descriptor", topic)
    clock.advance(59)
    log.warning("topic %d: no file descriptor", 7)
    assert caplog.messages == ["topic 0: no file descriptor"]
    clock.advance(1)
    log.warning("topic %d: no file descriptor", 8)
    assert caplog.messages[1:] == ["topic 8: no file descriptor (and 1000 more like it before)"]
    clock.advance(60)
    log.warning("topic %d: no file descriptor", 9)
    assert caplog.messages[2:] == ["topic 9: no file descriptor"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_each_kind_of_trouble_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    logs = RateLimitedLogs(logging.getLogger("trouble"), clock)
    for _ in range(3):
        logs.warning("column %r is left out", "a")
        logs.warning("too many columns")
    assert caplog.messages == ["column 'a' is left out", "too many columns"]
    clock.advance(60)
    logs.warning("column %r is left out", "b")
    assert caplog.messages[2:] == ["column 'b' is left out (and 2 more like it before)"]

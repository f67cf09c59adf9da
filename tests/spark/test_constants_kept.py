"""Checks in sessions that also run queries: one Spark that hangs does not delay those of others."""

from __future__ import annotations

import threading
from typing import Any

from penstock.spark.sql_guard import constants_kept


class Conf:
    """Settings of a session of a Spark that answers once it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Event()
        self.values: dict[str, str] = {}

    def set(self, name: str, value: str) -> None:
        self.asked.set()
        assert self.may_answer.wait(120)
        self.values[name] = value

    def unset(self, name: str) -> None:
        del self.values[name]


class Session:
    def __init__(self) -> None:
        self.conf = Conf()


def test_a_spark_that_does_not_answer_delays_no_checks_of_others() -> None:
    hanging: Any = Session()
    other: Any = Session()
    other.conf.may_answer.set()
    entered = threading.Event()

    def check(session: Any, done: threading.Event | None = None) -> None:
        with constants_kept(session):
            if done is not None:
                done.set()

    threads = [threading.Thread(target=check, args=(hanging,))]
    threads[0].start()
    try:
        assert hanging.conf.asked.wait(120)
        threads.append(threading.Thread(target=check, args=(other, entered)))
        threads[1].start()
        assert entered.wait(60)  # the other one waits longer
    finally:
        hanging.conf.may_answer.set()
        for thread in threads:
            thread.join()
    assert hanging.conf.values == other.conf.values == {}


def test_the_setting_lasts_until_the_last_of_nested_checks() -> None:
    session: Any = Session()
    session.conf.may_answer.set()
    with constants_kept(session):
        with constants_kept(session):
            assert session.conf.values
        assert session.conf.values
    assert not session.conf.values

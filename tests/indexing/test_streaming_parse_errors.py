"""Messages that cannot be parsed: how many a task bears, and what it tells of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.indexing.ports import TaskState
from penstock.indexing.specs import TuningConfig
from penstock.indexing.task.meters import MovingAverages
from tests.indexing.indexing_kit import OneTask, event


def world(tmp_path: Path, **tuning: Any) -> OneTask:
    return OneTask(tmp_path, tuning_config=TuningConfig(**tuning))


def _has_persisted(task: OneTask, offset: int) -> bool:
    return task.report().persisted[0] == offset


@pytest.mark.parametrize(
    ("tuning", "bad", "fails"),
    [
        ({}, 3, False),
        ({"max_parse_exceptions": 3}, 3, False),
        ({"max_parse_exceptions": 2}, 3, True),
        ({"max_parse_exceptions": 0}, 1, True),
        ({"report_parse_exceptions": True}, 1, True),
        ({"report_parse_exceptions": True}, 0, False),
    ],
)
def test_a_task_bears_as_many_as_its_spec_says(
    tmp_path: Path, tuning: Mapping[str, int], bad: int, fails: bool
) -> None:
    task = world(tmp_path, **tuning)
    messages = [event(0), *(f"broken {n}".encode() for n in range(bad)), event(1)]
    task.broker.add("flights", 0, messages)
    read = len(messages)
    task.run(lambda: task.task.result.state.complete or task.report().persisted[0] == read)
    assert (task.task.result.state is TaskState.FAILED) == fails
    assert task.task.counts["unparseable"] == bad
    if fails:
        assert f"offset {1}" in task.task.result.error
        assert "not a JSON object" in task.task.result.error
        assert f"allows {tuning.get('max_parse_exceptions', 0)}" in task.task.result.error
        assert task.announced() == []
    task.metadata.close()


def test_how_many_were_borne_outlives_the_process_and_the_publish(tmp_path: Path) -> None:
    task = world(tmp_path, max_parse_exceptions=2)
    task.broker.add("flights", 0, [event(0), b"broken 1", b"broken 2"])
    task.run(lambda: task.report().persisted[0] == 3)
    task.ask(task.task.pause())
    task.ask(task.task.set_end_offsets({0: 3, 1: 0}, finish=False))
    task.run(lambda: task.published() == [0])
    task.kill()
    task.start()
    assert task.task.counts["unparseable"] == 2
    task.broker.add("flights", 0, [b"broken 3"])
    task.run(lambda: task.task.result.state.complete)
    assert task.task.result.state is TaskState.FAILED
    assert "3 messages could not be parsed" in task.task.result.error
    task.metadata.close()


def test_the_newest_are_shown_with_place_reason_and_text(tmp_path: Path) -> None:
    task = world(tmp_path, max_saved_parse_exceptions=2)
    task.broker.add("flights", 1, [event(0), b"first", b"second"])
    task.run(lambda: task.report().persisted[1] == 3)
    task.broker.add("flights", 1, [b"third"])
    task.run(lambda: task.report().persisted[1] == 4)
    shown = task.ask(task.task.report()).unparseable
    assert [(s["partition"], s["offset"], s["input"]) for s in shown] == [
        (1, 2, "second"),
        (1, 3, "third"),
    ]
    assert {s["reason"] for s in shown} == {"not a JSON object with a time"}
    task.metadata.close()


def test_none_are_kept_unless_asked_for(tmp_path: Path) -> None:
    task = world(tmp_path)
    task.broker.add("flights", 0, [b"broken"])
    task.run(lambda: task.report().persisted[0] == 1)
    assert task.ask(task.task.report()).unparseable == ()
    task.metadata.close()


def test_the_log_tells_them_if_the_spec_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for tells in (False, True):
        (folder := tmp_path / str(tells)).mkdir()
        task = world(folder, log_parse_exceptions=tells)
        task.broker.add("flights", 0, [event(0), b"broken\nline", *[b"broken"] * 120])
        task.run(partial(_has_persisted, task, 122))
        assert task.ask(task.task.report()).unparseable == ()
        task.metadata.close()
        told = [one.getMessage() for one in caplog.records if "be parsed" in one.getMessage()]
        assert bool(told) is tells
    # A line each, however the message is written, and a bound for each batch.
    assert "offset 1 of partition 0: not a JSON object with a time: 'broken\\nline'" in told[0]
    assert (len(told), told[-1]) == (101, "cannot be parsed: 21 more like these")


def test_averages_forget_what_is_long_ago() -> None:
    meters = MovingAverages(0.0)
    for second in range(1, 3601):
        meters.add({"processed": 100}, float(second))
    steady = meters.rates(3600.0)
    for span in ("1m", "5m", "15m"):
        assert steady[span]["processed"] == pytest.approx(100, rel=0.02)
    later = meters.rates(3660.0)
    assert later["1m"]["processed"] == pytest.approx(100 / math.e, rel=0.02)
    assert later["15m"]["processed"] > later["5m"]["processed"] > later["1m"]["processed"]

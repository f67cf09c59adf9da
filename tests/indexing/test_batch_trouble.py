"""What goes wrong while a batch task works: what is tried again and how often, what fails it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from penstock.core.errors import Unavailable
from penstock.core.instants import format_time
from penstock.indexing.batch.batch_engine import BatchRequest, BatchResult, EngineProgress
from penstock.indexing.batch.retries import LOSSES_MAX, RetryBudget
from penstock.indexing.engine import (
    EngineFailure,
    EngineLost,
    EngineUnavailable,
    InputUnavailable,
)
from penstock.indexing.ports import TaskState
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.worker.peon_task import PeonTask
from tests.harness.engine_kit import FakeBatchEngine
from tests.indexing.batch_kit import ABC, BatchWorld, index, lines


def test_a_lost_engine_costs_another_try_into_another_folder(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    write = FakeBatchEngine.write

    def lost_at_first(
        engine: FakeBatchEngine, request: BatchRequest, progress: EngineProgress | None = None
    ) -> BatchResult:
        folders.append(request.output_folder)
        result = write(engine, request, progress)
        if len(folders) < 3:
            raise EngineUnavailable("the engine is gone")
        return result

    monkeypatch.setattr(FakeBatchEngine, "write", lost_at_first)
    assert world.run(index(lines(*ABC))).state is TaskState.SUCCESS
    assert world.rows() == ABC
    assert len(set(folders)) == len(folders) == 3


def payload(task: PeonTask) -> dict[str, JsonValue]:
    found = task.report().to_json("t")["ingestionStatsAndErrors"]
    assert isinstance(found, dict)
    told = found["payload"]
    assert isinstance(told, dict)
    return told


def test_an_engine_that_is_not_there_is_waited_for_and_the_report_says_so(
    world: BatchWorld,
) -> None:
    told = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def lose(moment: str) -> None:
        told.append((payload(task).get("failedTries"), payload(task).get("lastFailure")))
        if len(told) <= 3 * LOSSES_MAX:
            raise EngineUnavailable(f"nothing answers {moment}")

    world.engine.at = lose
    assert task.run().state is TaskState.SUCCESS
    assert told[:2] == [(None, None), (1, "nothing answers before write")]
    assert told[3 * LOSSES_MAX][0] == 3 * LOSSES_MAX
    assert "failedTries" not in payload(task)


def test_a_deep_storage_whose_folder_is_away_is_waited_for_by_name(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(world.deep_store.root)
    root.rename(root.with_name("away"))
    probe, told = world.deep_store.probe, []
    task = world.make(world.add(index(lines(*ABC))))

    def look() -> None:
        told.append(payload(task).get("lastFailure"))
        if len(told) == 3:
            assert not root.exists()
            root.with_name("away").rename(root)
        probe()

    monkeypatch.setattr(world.deep_store, "probe", look)
    assert task.run().state is TaskState.SUCCESS
    text = f"the deep storage folder {root} is missing: mount it, or restore it"
    assert told == [None, text, text]
    assert world.rows() == ABC


def test_the_report_says_which_try_of_how_many_and_when_the_next_is(world: BatchWorld) -> None:
    told: list[dict[str, JsonValue]] = []
    began_ms: list[int] = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def silent(_moment: str) -> None:
        began_ms.append(world.clock.now_ms())
        told.append(payload(task))
        if len(told) < 4:
            raise InputUnavailable("https://u:hush@h.org/a?key=hush cannot be read" + "!" * 9_000)

    world.engine.at = silent
    assert task.run().state is TaskState.SUCCESS
    assert [one.get("failedTries") for one in told[:4]] == [None, 1, 2, 3]
    for number, one in enumerate(told[1:4], 1):
        assert one["failedTriesMax"] == LOSSES_MAX
        assert one["failedWork"] == "writing segments"
        assert one["nextTry"] == format_time(began_ms[number])
        assert "hush" not in str(one["lastFailure"])
        assert len(str(one["lastFailure"])) == 2_000


def test_a_report_of_a_task_that_failed_tells_of_no_next_try(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    errors = [InputUnavailable("h.org cannot be read"), EngineFailure("a row has no time")]

    def break_down(_moment: str) -> None:
        if errors:
            raise errors.pop(0)

    world.engine.at = break_down
    assert task.run().state is TaskState.FAILED
    assert "nextTry" not in payload(task)


def test_the_report_says_that_the_overlord_does_not_answer(world: BatchWorld) -> None:
    told: list[dict[str, JsonValue]] = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def refuse(_kind: str) -> None:
        told.append(payload(task))
        if len(told) < 3:
            raise Unavailable("nobody is there")

    world.at = refuse
    assert task.run().state is TaskState.SUCCESS
    assert [one.get("failedTries") for one in told[:3]] == [None, 1, 2]
    assert "failedTries" not in payload(task)
    assert (told[2]["lastFailure"], told[2]["failedTriesMax"]) == ("nobody is there", None)


def test_work_that_breaks_the_engine_each_time_is_given_up(world: BatchWorld) -> None:
    began_s = []

    def lose(_moment: str) -> None:
        began_s.append(world.clock.monotonic_s())
        raise EngineLost("OutOfMemoryError: Java heap space")

    world.engine.at = lose
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    result = task.run()
    assert result.state is TaskState.FAILED
    assert len(began_s) == LOSSES_MAX
    assert f"lost {LOSSES_MAX} times" in result.error
    assert "Java heap space" in result.error
    assert "--spark-memory" in result.error
    assert payload(task)["failedTries"] == LOSSES_MAX
    world.end(spec)
    assert not world.store.locks.every()
    pauses = [after - before for before, after in itertools.pairwise(began_s)]
    assert pauses[-1] == 300


def test_a_peon_that_is_started_again_counts_on(world: BatchWorld) -> None:
    tries = []
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def lose(_moment: str) -> None:
        tries.append(1)
        if len(tries) == LOSSES_MAX - 3:
            task.stop()
        raise EngineLost("OutOfMemoryError: Java heap space")

    world.engine.at = lose
    assert task.run().state is TaskState.RUNNING
    task = world.make(spec)
    result = task.run()
    assert f"lost {LOSSES_MAX} times" in result.error
    # What ends a try that was told to stop is not held against the work.
    assert len(tries) == LOSSES_MAX + 1


def test_an_input_that_does_not_answer_is_given_up_and_named(world: BatchWorld) -> None:
    began_s = []

    def silent(_moment: str) -> None:
        began_s.append(world.clock.monotonic_s())
        raise InputUnavailable("https://example.org/a.json does not answer correctly")

    world.engine.at = silent
    result = world.run(index(lines(*ABC)))
    assert result.state is TaskState.FAILED
    assert len(began_s) == LOSSES_MAX
    assert (
        f"did not answer {LOSSES_MAX} times; last error: https://example.org/a.json" in result.error
    )
    assert "Check its host, or correct the input" in result.error
    assert began_s[-1] - began_s[0] > 600


class NoFolder:
    """Keeps nothing."""

    def read_json(self, _name: str) -> None:
        return None

    def write_json(self, _name: str, _value: object) -> None:
        raise Unavailable("the disk is full")


def losses(dice: random.Random) -> RetryBudget:
    return RetryBudget(dice.random, cast("TaskFolder", NoFolder()))


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_work_beside_such_work_is_not_given_up(seed: int, takes_s: int) -> None:
    dice = random.Random(seed)
    guilty, innocent, lost = losses(dice), losses(dice), EngineLost("gone")
    # The guilty task breaks the engine after half a minute of work.
    kills_s = [30.0]
    for _ in range(LOSSES_MAX - 1):
        kills_s.append(kills_s[-1] + guilty.note(lost).pause_ms / 1000 + 30)
    assert isinstance(guilty.note(lost).end, EngineFailure)
    begins_s = 0.0
    for kill_s in kills_s:
        if begins_s + takes_s <= kill_s:
            break
        if begins_s < kill_s:
            setback = innocent.note(lost)
            assert setback.end is None
            begins_s = kill_s + setback.pause_ms / 1000


def test_an_overlord_that_does_not_answer_is_asked_again(world: BatchWorld) -> None:
    asked = []

    def refuse(kind: str) -> None:
        asked.append(kind)
        if asked.count(kind) < 3:
            raise Unavailable("nobody is there")

    world.at = refuse
    assert world.run(index(lines(*ABC))).state is TaskState.SUCCESS
    assert world.rows() == ABC


def test_a_failure_of_the_engine_fails_the_task_and_changes_nothing(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))

    def fail(_moment: str) -> None:
        raise EngineFailure("a.json: line 3 is no JSON")

    world.engine.at = fail
    result = world.run(index(lines(*ABC)))
    assert result.state is TaskState.FAILED
    assert "line 3" in result.error
    assert world.rows() == ABC


def test_bad_rows_are_counted_sampled_and_bounded(world: BatchWorld) -> None:
    tuning = {"maxParseExceptions": 1, "maxSavedParseExceptions": 5}
    spec = world.add(index(lines(*ABC) + "\nnonsense", tuning=tuning))
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    assert cast("Any", task.report().unparseable["buildSegments"])[0]["place"] == "inline:4"
    task = world.make(world.add(index("no\nno", tuning=tuning)))
    assert task.run().state is TaskState.FAILED
    report = task.report()
    assert report.row_stats["buildSegments"]["unparseable"] == 2
    assert len(report.unparseable["buildSegments"]) == 2
    result = world.run(index(lines(*ABC) + "\nno", tuning={"maxParseExceptions": 0}))
    assert result.error.startswith("1 row cannot be parsed, but the limit is 0; the first: ")
    task = world.make(world.add(index("no\nno\nno")))
    assert task.run().state is TaskState.FAILED
    assert task.report().row_stats["buildSegments"]["unparseable"] == 3


@pytest.mark.parametrize("fails", [False, True])
def test_the_log_tells_bad_rows_if_the_spec_says_so(
    world: BatchWorld, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    rows = "\n".join([lines(*ABC), *["nonsense"] * 120])
    tuning = {"maxParseExceptions": 5 if fails else 200}
    world.run(index(rows, tuning=tuning))
    assert "cannot be parsed: inline" not in caplog.text
    result = world.run(index(rows, tuning=tuning | {"logParseExceptions": True}))
    assert (result.state is TaskState.FAILED) is fails
    told = [one.getMessage() for one in caplog.records if "be parsed: " in one.getMessage()]
    assert told[0] == "cannot be parsed: inline:4: not a JSON object with a time: 'nonsense'"
    assert (len(told), told[-1]) == (101, "cannot be parsed: 20 more like these")


@pytest.mark.parametrize("mode", ["append", "legacy", "replace"])
def test_an_input_without_a_row_that_parses_changes_nothing(world: BatchWorld, mode: str) -> None:
    world.run(index(lines(*ABC)))
    month = ["2026-01-01/2026-02-01"]
    result = world.run(index("no\nno", mode=mode, intervals=month))
    assert result.state is TaskState.FAILED
    assert "none of the 2 rows can be parsed; the first: inline:1: " in result.error
    assert "inputFormat" in result.error
    assert world.rows() == ABC


def test_a_stopped_task_goes_on_later(world: BatchWorld) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)

    def stop(_moment: str) -> None:
        task.stop()
        raise EngineFailure("cancelled")

    world.engine.at = stop
    assert task.run().state is TaskState.RUNNING
    assert world.engine.cancelled == [spec.id]
    world.engine = FakeBatchEngine()  # Each process has its own.
    assert world.make(spec).run().state is TaskState.SUCCESS
    assert world.rows() == ABC


def test_a_task_that_is_stopped_just_before_the_engine_is_called_does_not_write(
    world: BatchWorld,
) -> None:
    spec = world.add(index(lines(*ABC)))
    task = world.make(spec)
    world.engine.at = lambda moment: task.stop() if moment == "before write" else None
    assert task.run().state is TaskState.RUNNING
    assert world.engine.writes == []

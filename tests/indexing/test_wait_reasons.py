"""Why a task waits: the reasons that follow from the facts, without a queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.errors import Dependency
from penstock.core.waits import DependencyWait
from penstock.indexing.overlord.runner.slot_reasons import SlotReason
from penstock.indexing.overlord.task_index import ActiveTask, RunnerState
from penstock.indexing.overlord.wait_reasons import WaitFacts, reasons_of, retry_reasons
from tests.indexing.indexing_kit import make_task
from tests.indexing.queue_kit import noop

WAITING = WaitFacts(ActiveTask(noop("t"), 0), ("t", 0))
PENDING = replace(WAITING, active=replace(WAITING.active, state=RunnerState.PENDING))
RUNNING = replace(WAITING, active=replace(WAITING.active, state=RunnerState.RUNNING))


def kinds(facts: WaitFacts) -> list[str]:
    return [one.kind for one in reasons_of(facts)]


def test_a_waiting_task_waits_for_locks_and_for_the_tasks_before_it() -> None:
    assert kinds(WAITING) == ["locks"]
    for before, start in (1, "1 earlier task that requests "), (2, "2 earlier tasks that request "):
        (wait,) = reasons_of(replace(WAITING, line=("first", before)))
        assert (wait.kind, wait.text) == ("line", f"{start}the same locks; first is next")


def test_a_pending_task_waits_for_a_slot_and_the_text_has_the_shortage() -> None:
    slots = [SlotReason("w", "all of its 2 slots are taken")]
    (wait,) = reasons_of(replace(PENDING, slots=slots, shortage="supervisors need all slots"))
    assert (wait.kind, wait.slots) == ("slots", tuple(slots))
    assert wait.text.endswith("w: all of its 2 slots are taken; supervisors need all slots")


def test_the_task_of_a_supervisor_is_not_told_to_leave_slots_to_others() -> None:
    stream = replace(PENDING.active, task=make_task())
    (wait,) = reasons_of(replace(PENDING, active=stream, shortage="supervisors need all slots"))
    assert "supervisors" not in wait.text


def test_a_task_that_was_handed_over_waits_for_its_worker() -> None:
    handed = replace(PENDING.active, worker="w")
    assert kinds(replace(PENDING, active=handed, shortage="of slots")) == ["worker"]


def test_a_running_task_waits_for_a_publish_and_for_dependencies() -> None:
    assert kinds(RUNNING) == []
    wait = DependencyWait(Dependency.STORAGE, "push", 0, 1, "no answer")
    waits = replace(RUNNING.active, waits=(wait,))
    assert kinds(replace(RUNNING, active=waits, publish="sequence a_0 first")) == [
        "publish",
        "dependency",
    ]


def test_a_retry_is_read_from_the_report_of_the_running_task() -> None:
    payload = {
        "failedWork": "a publish",
        "failedTries": 3,
        "failedTriesMax": 20,
        "lastFailure": "no answer",
        "nextTry": "2026-11-22T16:00:00.000Z",
    }
    (wait,) = retry_reasons({"ingestionStatsAndErrors": {"payload": payload}})
    assert wait.text == (
        "its next attempt of a publish, at 2026-11-22T16:00:00.000Z: 3 failed; with 20 it fails;"
        " last reason: no answer"
    )
    (wait,) = retry_reasons(
        {"ingestionStatsAndErrors": {"payload": payload | {"failedTriesMax": None}}}
    )
    assert "it retries without a limit" in wait.text


def test_a_report_of_another_form_has_no_retry() -> None:
    nothing = {"ingestionStatsAndErrors": {"payload": {"nextTry": None}}}
    reports: tuple[Any, ...] = (None, [], {}, {"ingestionStatsAndErrors": 1}, nothing)
    for report in reports:
        assert retry_reasons(report) == []

"""Up to when CRON driven components are served: what is written, and when it counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.controller.cron_progress import CronProgress
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.scheduling.component import ComponentStatistics
from penstock.flow.scheduling.component_lifecycle import ComponentState, DesiredState
from penstock.flow.scheduling.cron.expression import CronExpression
from penstock.flow.scheduling.strategy import ComponentSchedule, SchedulingStrategy


@dataclass
class Store:
    states: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0
    full: bool = False

    def state(self, key: str) -> bytes | None:
        return self.states.get(key)

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        if self.full:
            raise Unavailable("no space left")
        self.commits += 1
        for key, value in changes.states.items():
            if value is None:
                self.states.pop(key, None)
            else:
                self.states[key] = value


def daily(hour: int, zone: str = "UTC") -> ComponentSchedule:
    return ComponentSchedule(
        SchedulingStrategy.CRON, cron=CronExpression.parse(f"0 0 {hour} * * ?", zone)
    )


def seen(served_ms: int | None, one: str = "a", active: int = 0) -> ComponentStatistics:
    running = (ComponentState.RUNNING, DesiredState.RUNNING)
    counts = (active, 0, 0, 0, 0, 0, 0)
    return ComponentStatistics(one, *running, *counts, None, served_ms, None, None, "", ())


def test_what_changed_is_one_commit_and_read_back() -> None:
    store = Store()
    schedules = {"a": daily(3), "b": daily(4), "c": ComponentSchedule()}
    firings = CronProgress(store)
    both = [seen(5), seen(6, "b"), seen(None, "c")]
    firings.note(both, schedules, ends_in_order=False)
    firings.note(both, schedules, ends_in_order=False)
    assert store.commits == 1
    again = CronProgress(store)
    assert [again.served_ms(one, schedule) for one, schedule in schedules.items()] == [5, 6, None]
    again.forget(["a", "c"])
    assert CronProgress(store).served_ms("a", daily(3)) is None
    assert CronProgress(store).served_ms("b", daily(4)) == 6


@pytest.mark.parametrize("other", [daily(4), daily(3, "Europe/Berlin"), ComponentSchedule()])
def test_a_time_counts_for_its_expression_alone(other: ComponentSchedule) -> None:
    firings = CronProgress(Store())
    firings.note([seen(5)], {"a": daily(3)}, ends_in_order=False)
    assert firings.served_ms("a", other) is None
    assert firings.served_ms("a", replace(daily(3), concurrent_tasks=2)) == 5


def test_a_run_that_may_be_killed_is_not_served() -> None:
    firings = CronProgress(Store())
    firings.note([seen(5, active=1)], {"a": daily(3)}, ends_in_order=False)
    assert firings.served_ms("a", daily(3)) is None
    firings.note([seen(5, active=1)], {"a": daily(3)}, ends_in_order=True)
    assert firings.served_ms("a", daily(3)) == 5


def test_what_could_not_be_written_is_written_the_next_time() -> None:
    store = Store(full=True)
    firings = CronProgress(store)
    firings.note([seen(5)], {"a": daily(3)}, ends_in_order=False)
    store.full = False
    firings.note([seen(5)], {"a": daily(3)}, ends_in_order=False)
    assert CronProgress(store).served_ms("a", daily(3)) == 5
    store.states = dict.fromkeys(store.states, b"of another Penstock")
    assert CronProgress(store).served_ms("a", daily(3)) is None

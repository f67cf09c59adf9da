"""Waits for dependencies: one record for each piece of work, until it succeeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.errors import (
    Dependency,
    MetadataUnavailable,
    NotFound,
    StorageUnavailable,
    Unavailable,
)
from penstock.core.intervals import format_time
from penstock.core.waits import DependencyWait, WaitTable, merged, owned, waits_from_json
from penstock.testing.clock import VirtualClock


def test_a_wait_begins_with_the_first_failure_and_ends_with_a_success() -> None:
    clock, changes = VirtualClock(), []
    table = WaitTable(clock, lambda: changes.append(table.all()))
    begun_ms = clock.now_ms()
    table.failed("publish", StorageUnavailable("503"))
    clock.advance(7)
    table.failed("publish", StorageUnavailable("503 again"))
    (wait,) = table.all()
    assert wait == DependencyWait(Dependency.STORAGE, "publish", begun_ms, 2, "503 again")
    assert "deep storage since " in str(wait)
    assert "2 tries (publish): 503 again" in str(wait)
    seconds = {
        dict(one.labels)["dependency"]: one.value
        for one in table.samples()
        if one.name == "penstock_waiting_seconds"
    }
    assert seconds["deep storage"] == 7
    assert seconds["broker"] == 0
    table.ended("publish")
    table.ended("publish")
    assert table.all() == ()
    assert [len(one) for one in changes] == [1, 1, 0]


def test_an_error_names_its_dependency_and_the_caller_may_know_it_better() -> None:
    table = WaitTable(VirtualClock())
    table.failed("a", MetadataUnavailable("away"), dependency=Dependency.OVERLORD)
    table.failed("b", Unavailable("away"), dependency=Dependency.OVERLORD)
    table.failed("c", NotFound("no topic"))
    table.failed("d", Unavailable("away", dependency=Dependency.BROKER))
    assert {one.work: one.dependency for one in table.all()} == {
        "a": Dependency.METADATA,
        "b": Dependency.OVERLORD,
        "c": Dependency.OTHER,
        "d": Dependency.BROKER,
    }


def test_a_wait_for_another_dependency_begins_anew() -> None:
    clock = VirtualClock()
    table = WaitTable(clock)
    table.failed("p", Unavailable("away", dependency=Dependency.SPARK))
    clock.advance(60)
    wait = table.failed("p", Unavailable("refused", dependency=Dependency.BROKER))
    assert wait == DependencyWait(Dependency.BROKER, "p", clock.now_ms(), 1, "refused")
    values = {(one.name, dict(one.labels)["dependency"]): one.value for one in table.samples()}
    assert values["penstock_waiting_seconds", "broker"] == 0
    assert values["penstock_waiting_tries", "Spark"] == 0


def test_waits_survive_their_json_form() -> None:
    full = DependencyWait(Dependency.SPARK, "persist", 1_000, 3, "gone", 20, 2_000, 3_000, "task t")
    plain = DependencyWait(Dependency.OTHER, "x", 0, 1, "")
    assert waits_from_json([full.to_json(), plain.to_json()]) == (full, plain)
    assert full.to_json().keys() == plain.to_json().keys()


@pytest.mark.parametrize(
    "broken",
    [None, {}, "x", [1], [{}], [{"dependency": "a fairy", "work": "", "since": "1970-01-01"}]],
)
def test_what_cannot_be_read_is_left_out(broken: object) -> None:
    assert waits_from_json(broken) == ()


def test_many_waits_for_one_dependency_become_one() -> None:
    first = DependencyWait(Dependency.BROKER, "poll", 10, 4, "refused")
    later = DependencyWait(Dependency.BROKER, "look", 20, 2, "no answer")
    other = DependencyWait(Dependency.SPARK, "persist", 15, 1, "gone")
    broker, spark = merged([[later], [first, other]])
    assert broker == DependencyWait(Dependency.BROKER, "poll", 10, 6, "refused")
    assert spark == other


def test_a_wait_that_two_processes_report_counts_once_and_the_newer_report_is_kept() -> None:
    wait = DependencyWait(Dependency.INPUT, "read", 10, 6, "refused")
    newer = replace(wait, tries=7)
    groups = [owned([newer], "task a"), owned([wait], "task a"), owned([wait], "task b")]
    expected = [replace(newer, owner="task a"), replace(wait, owner="task b")]
    assert merged(groups) == expected
    assert merged(reversed(groups)) == expected[::-1]
    again = replace(wait, since_ms=20, tries=1)
    assert merged([owned([newer], "task a"), owned([again], "task a")]) == [
        replace(again, owner="task a")
    ]
    other = replace(wait, work="write")
    assert len(merged([owned([wait, other], "task a")])) == 2


@pytest.mark.parametrize(("tries_max", "which"), [(20, "try 6 of 20"), (0, "try 6")])
def test_a_wait_shows_which_try_is_next_of_how_many_and_when(tries_max: int, which: str) -> None:
    wait = DependencyWait(Dependency.INPUT, "read", 0, 5, "try again", tries_max, next_ms=5_000)
    assert str(wait) == (
        f"input since 1970-01-01T00:00:00.000Z, 5 tries, {which} is next at"
        " 1970-01-01T00:00:05.000Z (read): try again"
    )
    assert "next" not in str(replace(wait, next_ms=None))


def test_a_wait_shows_that_a_new_try_runs_whose_outcome_is_open() -> None:
    clock = VirtualClock()
    table = WaitTable(clock)
    table.begin_try("persist")
    assert table.all() == ()
    table.failed("persist", Unavailable("nothing answers", dependency=Dependency.SPARK))
    clock.advance(5.0)
    table.begin_try("persist")
    [wait] = table.all()
    assert str(wait).endswith(
        f": nothing answers; a new try has run since {format_time(clock.now_ms())}"
    )
    assert waits_from_json([wait.to_json()]) == (wait,)
    table.failed("persist", Unavailable("nothing answers", dependency=Dependency.SPARK))
    assert "a new try" not in str(table.all()[0])

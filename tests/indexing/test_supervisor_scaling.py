"""How many groups there are: the scaler's decisions, and what becomes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs import parse_supervisor_spec
from penstock.indexing.specs.stream_config import AutoScalerConfig
from penstock.indexing.specs.supervisor_spec import SupervisorSpec
from penstock.indexing.supervisor.autoscaler import Idleness, LagScaler, aggregate
from penstock.indexing.supervisor.spec_updates import UpdateAction, succeed, update_action
from penstock.storage.metadata.rows.cluster import SupervisorRow
from penstock.storage.metadata.tables.supervisors import SupervisorTable
from tests.indexing.indexing_kit import spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, counts, fail, feed, offsets, slowed, status, until

SCALER: dict[str, JsonValue] = {"enableTaskAutoScaler": True, "taskCountMin": 1, "taskCountMax": 8}


def config(**more: JsonValue) -> AutoScalerConfig:
    return AutoScalerConfig.model_validate({**SCALER, **more}, by_alias=True)


def story(
    scaler: LagScaler,
    lags: Sequence[int],
    *,
    count: int = 2,
    partitions: int = 16,
    step_s: int = 30,
) -> list[tuple[float, int, int]]:
    """Tell a scaler of lags, one each `step_s`; return what it decided, and when."""
    decisions = []
    for n, lag in enumerate(lags):
        now_s = float(n * step_s)
        scaler.observe({0: lag}, now_s)
        wanted = scaler.decide(count, partitions, now_s)
        if wanted is not None:
            decisions.append((now_s, count, wanted))
            scaler.changed(now_s)
            count = wanted
    return decisions


def test_druids_numbers() -> None:
    high, low = 6_000_000, 1_000_000
    # Ten minutes of lags, 30 % of them high: two more; then not before ten minutes are over.
    assert story(LagScaler(config(), 0), [high] * 22)[0] == (600.0, 2, 4)
    assert [s for s, _, _ in story(LagScaler(config(), 0), [high] * 80)] == [600.0, 1200.0, 1800.0]
    mixed = [high if n % 4 == 0 else low + 1 for n in range(22)]
    assert story(LagScaler(config(), 0), mixed) == []
    mostly_low = [low if n % 8 else low + 1 for n in range(22)]
    assert story(LagScaler(config(), 0), mostly_low) == []
    assert story(LagScaler(config(), 0), [low] * 22, count=3) == [(600.0, 3, 2)]


def test_steps_are_as_long_as_the_spec_says() -> None:
    far = config(scaleOutStep=3, scaleInStep=4)
    assert story(LagScaler(far, 0), [6_000_000] * 22)[0] == (600.0, 2, 5)
    assert story(LagScaler(far, 0), [0] * 22, count=8)[0] == (600.0, 8, 4)
    # And no further than the bounds.
    assert story(LagScaler(far, 0), [6_000_000] * 22, count=7)[0] == (600.0, 7, 8)
    assert story(LagScaler(far, 0), [0] * 22, count=3)[0] == (600.0, 3, 1)


@pytest.mark.parametrize(
    ("how", "decided"), [("SUM", [(600.0, 2, 4)]), ("MAX", []), ("AVERAGE", [])]
)
def test_what_lags_become_one_by_decides(
    how: str, decided: Sequence[tuple[float, int, int]]
) -> None:
    scaler = LagScaler(config(lagAggregate=how), 0)
    found = []
    for n in range(22):
        scaler.observe({0: 3_500_000, 1: 3_500_000}, n * 30.0)
        wanted = scaler.decide(2, 16, n * 30.0)
        if wanted is not None:
            found.append((n * 30.0, 2, wanted))
            scaler.changed(n * 30.0)
    assert found == decided


def test_bounds_hold() -> None:
    high = [6_000_000] * 200
    assert story(LagScaler(config(), 0), high, partitions=3)[-1][2] == 3
    assert story(LagScaler(config(), 0), high)[-1][2] == 8
    assert story(LagScaler(config(), 0), [0] * 200)[-1][2] == 1
    assert story(LagScaler(config(), 0), [2_000_000] * 30, count=12)[0][2] == 8


@given(
    lags=st.lists(st.integers(0, 12_000_000), max_size=120),
    partitions=st.integers(1, 12),
    quiet=st.integers(0, 1_200_000),
)
def test_it_stays_within_its_bounds_and_never_flaps(
    lags: Sequence[int], partitions: int, quiet: int
) -> None:
    scaler = LagScaler(config(minTriggerScaleActionFrequencyMillis=quiet), 0)
    decisions = story(scaler, lags, partitions=partitions, count=1)
    for _, before, after in decisions:
        assert before != after
        assert 1 <= after <= max(1, min(8, partitions))
    for (one_s, *_), (two_s, *_) in itertools.pairwise(decisions):
        assert two_s - one_s >= max(quiet / 1000, 570)


@given(lag=st.integers(0, 12_000_000), count=st.integers(1, 8))
def test_a_lag_that_stays_moves_the_number_one_way_only(lag: int, count: int) -> None:
    decisions = story(LagScaler(config(), 0), [lag] * 150, count=count)
    directions = {after > before for _, before, after in decisions}
    assert len(directions) <= 1


def test_lags_of_stream_partitions_become_one() -> None:
    lag = {0: 10, 1: 20}
    assert [aggregate(lag, how) for how in ("SUM", "MAX", "AVERAGE")] == [30, 20, 15]
    assert aggregate({}, "AVERAGE") == 0


def test_a_stream_is_idle_when_nothing_came_for_long_enough() -> None:
    idleness = Idleness()
    assert not idleness.is_idle({0: 5}, 0, 1000, 0.0)
    assert not idleness.is_idle({0: 5}, 0, 1000, 0.9)
    assert idleness.is_idle({0: 5}, 0, 1000, 1.0)
    assert not idleness.is_idle({0: 5}, 0, None, 1.0)
    assert not idleness.is_idle({0: 6}, 1, 1000, 2.0)
    assert not idleness.is_idle({0: 6}, 0, 1000, 2.9)
    assert idleness.is_idle({0: 6}, 0, 1000, 3.0)


def spec(**io: Any) -> SupervisorSpec:
    return parse_supervisor_spec(spec_json(**io))


@pytest.mark.parametrize(
    ("old", "new", "action"),
    [
        ({}, {}, UpdateAction.NONE),
        ({}, {"taskDuration": "PT2H"}, UpdateAction.RESTART_SUPERVISOR),
        ({}, {"taskCount": 2}, UpdateAction.RESTART_SUPERVISOR_AND_TASKS),
        ({}, {"replicas": 2}, UpdateAction.RESTART_SUPERVISOR_AND_TASKS),
        ({}, {"deadLetterTopic": "bad"}, UpdateAction.RESTART_SUPERVISOR_AND_TASKS),
        (
            {"autoScalerConfig": SCALER, "taskCount": 2},
            {"autoScalerConfig": SCALER, "taskCount": 3},
            UpdateAction.NONE,
        ),
    ],
)
def test_what_another_spec_asks_for(
    old: dict[str, Any], new: dict[str, Any], action: UpdateAction
) -> None:
    assert update_action(spec(**old), spec(**new)) is action


def test_a_spec_that_does_not_say_how_many_goes_on_with_as_many() -> None:
    first = succeed(None, spec(autoScalerConfig={**SCALER, "taskCountStart": 3}))
    assert first.io.task_count == 3
    assert succeed(first, spec(autoScalerConfig=SCALER)).io.task_count == 3
    assert succeed(first, spec(autoScalerConfig=SCALER, taskCount=2)).io.task_count == 2
    assert succeed(first, spec()).io.task_count == 3
    assert succeed(spec(taskCount=4), spec()).io.task_count == 4
    assert succeed(spec(taskCount=4), spec(autoScalerConfig=SCALER)).io.task_count == 4
    assert succeed(None, spec()).io.task_count == 1
    narrow: dict[str, Any] = {**SCALER, "taskCountMax": 2}
    assert succeed(first, spec(autoScalerConfig=narrow)).io.task_count == 2
    with pytest.raises(InvalidRequest, match="another id"):
        succeed(first, spec(topic="other"))


# with a whole overlord

QUICK = {
    **SCALER,
    "scaleActionStartDelayMillis": 1_000,
    "lagCollectionIntervalMillis": 1_000,
    "lagCollectionRangeMillis": 5_000,
    "scaleActionPeriodMillis": 1_000,
    "minTriggerScaleActionFrequencyMillis": 5_000,
    "scaleOutThreshold": 10,
    "scaleInThreshold": 0,
}


def test_a_lag_brings_more_tasks_and_none_fewer(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H", autoScalerConfig=QUICK, slots=8)
    go_on = slowed(sim)
    feed(sim, 40)
    until(sim, lambda: counts(sim)[0] == 2)
    go_on()
    until(sim, lambda: len({t["groupId"] for t in status(sim)["activeTasks"]}) == 2)
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: len({t["groupId"] for t in status(sim)["activeTasks"]}) == 1)
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)
    assert counts(sim) == [1, 2, 1]


def test_an_idle_supervisor_has_no_tasks_until_something_comes(
    make: Callable[..., Simulation],
) -> None:
    idle = {"enabled": True, "inactiveAfterMillis": 30_000}
    sim = make(taskDuration="PT20S", idleConfig=idle)
    feed(sim, 4)
    until(sim, lambda: sim.published() == sim.good)
    until(sim, lambda: status(sim)["detailedState"] == "IDLE" and not sim.overlord.active_tasks())
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)
    assert status(sim)["detailedState"] == "RUNNING"


def test_a_bounded_supervisor_reads_its_piece_and_is_done(make: Callable[..., Simulation]) -> None:
    bounds = {"startSequenceNumbers": {"0": 1, "1": 0}, "endSequenceNumbers": {"0": 3, "1": 2}}
    sim = make(taskDuration="PT1H", boundedStreamConfig=bounds)
    feed(sim, 10)
    until(sim, lambda: status(sim)["detailedState"] == "COMPLETED")
    assert sim.published() == [1, 2, 3, 4]
    assert offsets(sim) == {0: 3, 1: 2}
    assert not sim.overlord.active_tasks()


def test_a_bounded_supervisor_makes_up_for_tasks_that_are_lost(
    make: Callable[..., Simulation],
) -> None:
    bounds = {"startSequenceNumbers": {"0": 0}, "endSequenceNumbers": {"0": 4}}
    sim = make(taskDuration="PT1H", boundedStreamConfig=bounds)
    feed(sim, 4)
    until(sim, sim.overlord.active_tasks)
    (task,) = sim.overlord.active_tasks()
    ask(sim, sim.overlord.shutdown_task(task))
    feed(sim, 6)
    until(sim, lambda: status(sim)["detailedState"] == "COMPLETED")
    assert sim.published() == [0, 2, 4, 6]


def backfilling(make: Callable[..., Simulation], **more: object) -> Simulation:
    sim = make(taskDuration="PT1H", slots=8, useEarliestOffset=False, **more)
    changed = sim.spec.to_json()
    changed["context"] = {"useConcurrentLocks": True}
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: offsets(sim))
    return sim


RESTS = {**QUICK, "minTriggerScaleActionFrequencyMillis": 86_400_000}
RESTS_BY_COST = {
    "autoScalerStrategy": "costBased",
    "enableTaskAutoScaler": True,
    "taskCountMin": 1,
    "taskCountMax": 2,
    "criticalLagThreshold": 10,
    "scaleActionPeriodMillis": 1_000,
    "minScaleUpDelay": "P1D",
}


@pytest.mark.parametrize("scaler", [RESTS, RESTS_BY_COST], ids=["lag", "cost"])
def test_a_change_that_could_not_be_stored_is_made_at_the_next_look(
    make: Callable[..., Simulation],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    scaler: dict[str, Any],
) -> None:
    """The scaler would else rest from it for as long as from one that was made; the log tells it.

    That is once, when it is made.
    """
    caplog.set_level("INFO")
    store = SupervisorTable.put
    refused: list[object] = []

    def put(
        self: SupervisorTable, supervisor_id: str, payload: Mapping[str, object], **more: Any
    ) -> SupervisorRow:
        spec: Any = payload["spec"]
        count = spec["ioConfig"]["taskCount"]
        if count == 2 and len(refused) < 3:
            refused.append(count)
            fail("the metadata does not answer")
        return store(self, supervisor_id, payload, **more)

    monkeypatch.setattr(SupervisorTable, "put", put)
    sim = make(taskDuration="PT1H", autoScalerConfig=scaler, slots=8)
    slowed(sim)
    feed(sim, 40)
    until(sim, lambda: counts(sim)[0] == 2)
    assert refused == [2, 2, 2]
    assert caplog.text.count("2 groups instead of 1; the lag of 2 partitions is ") == 1


def test_what_lies_before_is_left_to_another_supervisor(make: Callable[..., Simulation]) -> None:
    sim = backfilling(make)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: status(sim)["latestOffsets"] == {"0": 5, "1": 5})
    other = ask(sim, sim.overlord.supervisor_service.backfill("flights"))
    assert other.startswith("flights_backfill_")
    assert offsets(sim) == {0: 5, 1: 5}
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)
    spec = ask(sim, sim.overlord.supervisor_service.spec(other))
    assert isinstance(spec, SupervisorSpec)
    assert spec.io.bounded_stream_config is not None
    assert spec.io.bounded_stream_config.end_sequence_numbers == {"0": 5, "1": 5}
    until(
        sim,
        lambda: (
            cast("Any", ask(sim, sim.overlord.supervisor_service.status(other)))["payload"]["state"]
            == "COMPLETED"
        ),
    )
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)


@pytest.mark.parametrize("context", [{}, {"useConcurrentLocks": None}])
def test_what_tasks_get_by_default_counts_for_a_backfill(
    make: Callable[..., Simulation], context: dict[str, Any]
) -> None:
    sim = make(taskDuration="PT1H", slots=8, useEarliestOffset=False)
    sim.task_context = {"useConcurrentLocks": True}
    sim.kill_overlord()
    ask(sim, sim.overlord.supervisor_service.submit({**sim.spec.to_json(), "context": context}))
    until(sim, lambda: offsets(sim))
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    until(sim, lambda: status(sim)["latestOffsets"] == {"0": 5, "1": 5})
    other = ask(sim, sim.overlord.supervisor_service.backfill("flights"))
    assert other.startswith("flights_backfill_")


@pytest.mark.parametrize(
    ("io", "context", "place"),
    [
        ({"useEarliestOffset": True}, {"useConcurrentLocks": True}, "useEarliestOffset"),
        ({"useEarliestOffset": False}, {}, "useConcurrentLocks"),
        ({"useEarliestOffset": False}, {"useConcurrentLocks": "false"}, "useConcurrentLocks"),
    ],
)
def test_a_backfill_has_preconditions(
    make: Callable[..., Simulation], io: Mapping[str, bool], context: dict[str, Any], place: str
) -> None:
    sim = make(taskDuration="PT1H", **io)
    changed = sim.spec.to_json()
    changed["context"] = context
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: offsets(sim))
    feed(sim, 4)
    until(sim, lambda: sim.visible() == sim.good)
    tasks = set(sim.overlord.active_tasks())
    with pytest.raises(InvalidRequest, match=place):
        ask(sim, sim.overlord.supervisor_service.backfill("flights"))
    assert set(sim.overlord.active_tasks()) == tasks


def test_a_spec_that_asks_for_nothing_new_is_not_stored_if_so_wished(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    raw: dict[str, Any] = sim.spec.to_json()
    same = ask(sim, sim.overlord.supervisor_service.submit(raw, skip_unmodified=True))
    assert (same.id, same.modified, same.restarted) == ("flights", False, False)
    assert len(sim.overlord.supervisor_service.history("flights")) == 1
    raw["spec"]["ioConfig"]["taskDuration"] = "PT2H"
    other = ask(sim, sim.overlord.supervisor_service.submit(raw, skip_unmodified=True))
    assert (other.modified, other.restarted) == (True, False)
    assert len(sim.overlord.supervisor_service.history("flights")) == 2

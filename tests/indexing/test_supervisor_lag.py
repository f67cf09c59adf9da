"""How far a supervisor is behind in time, and how often it asks its stream how far that is.

A lag in messages says little of a stream whose rate nobody knows. Both cost questions, so that a
spec says whether and how often; nothing that depends on a look may wait because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.indexing.source import TopicSupplier
from penstock.indexing.specs import SpecError, parse_supervisor_spec
from penstock.indexing.supervisor.lag import SAMPLES_MAX, LagHistories, LagHistory
from penstock.indexing.supervisor.reconciler import Reconciler
from penstock.indexing.supervisor.spec_updates import UpdateAction, update_action
from penstock.indexing.supervisor.stream_watch import StreamWatch
from penstock.indexing.task_spec import base_sequence_name
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.background_calls import CallDispatcher
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import StepLanes
from tests.indexing.indexing_kit import FakeBroker, make_spec, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, offsets, running, slowed, status, until

PLAIN = {"maxTotalRows": 5000}
TIMES = ("minimumLagMillis", "aggregateLagMillis", "maxLagMillis")


def times(sim: Simulation) -> list[Any]:
    payload = status(sim)
    return [payload.get(name) for name in TIMES]


def timed(sim: Simulation, *gaps_ms: int) -> None:
    """Say when the messages of stream partition 0 came, each so long after the one before.

    Those of the other came all at once.
    """
    at = 0
    for offset, gap in enumerate(gaps_ms):
        at += gap
        sim.broker.times_ms |= {("flights", 0, offset): at, ("flights", 1, offset): 0}


def looks_of(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    looks, available = [], sim.broker.available

    def counted(topic: str, **asked: Any) -> SeenTopic:
        if "after" not in asked or asked["after"] is None:
            looks.append(sim.clock.monotonic_s())
        return available(topic, **asked)

    monkeypatch.setattr(sim.broker, "available", counted)
    return looks


def _runs_others(sim: Simulation, before: list[str]) -> bool:
    return running(sim) != before


def test_the_time_between_the_first_unread_message_and_the_newest_is_told(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    go_on = slowed(sim)
    feed(sim, 6)
    timed(sim, 0, 700, 40)
    sim.broker.times_ms |= {("flights", 1, 0): 50, ("flights", 1, 2): 20}  # a clock was set back
    until(sim, lambda: times(sim) == [{"0": 740, "1": 0}, 740, 740])
    go_on()
    until(sim, lambda: times(sim) == [{"0": 0, "1": 0}, 0, 0])
    assert sim.visible() == sim.good


DIMENSIONS = {"supervisorId": "flights", "dataSource": "flights", "stream": "flights"}


def told(sim: Simulation) -> dict[tuple[str, str], float]:
    """Return what was measured of the lag, and forget it."""
    found = {
        (name, dimensions.pop("partition", "")): (value, dimensions)
        for name, value, dimensions in sim.events.measures
        if name.startswith("ingest/")
    }
    assert all(dimensions == DIMENSIONS for _, dimensions in found.values())
    sim.events.measures.clear()
    return {key: value for key, (value, _) in found.items()}


def test_the_lag_is_told_each_minute_as_druids_supervisors_do(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    slowed(sim)
    feed(sim, 5)
    timed(sim, 0, 700, 40)
    until(sim, lambda: times(sim)[1] == 740)
    told(sim)
    sim.run(61)
    assert told(sim) == {
        ("ingest/penstock/partitionLag", "0"): 3,
        ("ingest/penstock/partitionLag", "1"): 2,
        ("ingest/penstock/lag", ""): 5,
        ("ingest/penstock/maxLag", ""): 3,
        ("ingest/penstock/avgLag", ""): 2.5,
        ("ingest/penstock/partitionLag/time", "0"): 740,
        ("ingest/penstock/partitionLag/time", "1"): 0,
        ("ingest/penstock/lag/time", ""): 740,
        ("ingest/penstock/maxLag/time", ""): 740,
        ("ingest/penstock/avgLag/time", ""): 370,
    }
    sim.run(150)
    lags = [value for value, _ in sim.events.of("ingest/penstock/lag")]
    assert lags in ([5, 5], [5, 5, 5])


def test_of_a_lag_in_time_that_is_not_known_only_what_is_known_is_told(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    slowed(sim)
    feed(sim, 4)
    timed(sim, 7, 7)
    del sim.broker.times_ms["flights", 0, 1]  # It was deleted meanwhile.
    until(sim, lambda: times(sim)[0] == {"0": None, "1": 0})
    told(sim)
    sim.run(61)
    in_time = {key: value for key, value in told(sim).items() if key[0].endswith("/time")}
    assert in_time == {("ingest/penstock/partitionLag/time", "1"): 0}


def test_no_lag_is_told_where_nobody_reads_or_the_stream_is_away(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 4)
    until(sim, lambda: running(sim))
    ask(sim, sim.overlord.supervisor_service.suspend("flights", suspended=True))
    until(sim, lambda: status(sim)["state"] == "SUSPENDED")
    told(sim)
    sim.run(130)
    assert told(sim) == {}
    ask(sim, sim.overlord.supervisor_service.suspend("flights", suspended=False))
    until(sim, lambda: told(sim).get(("ingest/penstock/lag", "")) == 0)
    monkeypatch.setattr(sim.broker, "available", lambda *_, **__: fail("the broker is away"))
    until(sim, lambda: status(sim)["detailedState"] == "LOST_CONTACT_WITH_STREAM")
    told(sim)
    sim.run(130)
    assert told(sim) == {}


def test_two_messages_of_a_stream_partition_are_asked_for_in_a_period(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT20S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    slowed(sim)
    feed(sim, 6)
    timed(sim, 0, 5, 5)
    until(sim, lambda: times(sim)[1] == 10)
    asked = sim.broker.times_asked
    sim.run(100)
    assert sim.broker.times_asked - asked in range(16, 25)


def test_a_lag_that_is_not_known_of_one_is_not_known_of_all(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    slowed(sim)
    feed(sim, 4)
    timed(sim, 7, 7)
    del sim.broker.times_ms["flights", 0, 1]  # It was deleted meanwhile.
    until(sim, lambda: times(sim) == [{"0": None, "1": 0}, None, None])
    (view,) = ask(sim, sim.overlord.supervisor_service.every())
    assert view.summary["maxLagMillis"] is None


def test_the_lag_of_one_that_nobody_came_to_stays_as_it_was_found(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    slowed(sim)
    feed(sim, 6)
    turns = iter([{0: 740}, {1: 30}, {0: None}])
    monkeypatch.setattr(TopicSupplier, "spans_ms", lambda *_asked: next(turns, {}))
    until(sim, lambda: times(sim)[0] == {"0": 740, "1": None})
    until(sim, lambda: times(sim) == [{"0": 740, "1": 30}, 770, 740])
    until(sim, lambda: times(sim)[0] == {"0": None, "1": 30})


def test_what_was_read_since_has_no_lag_though_times_are_not_asked_for_anew(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H", taskCount=2, emitTimeLagMetrics=True)
    read, slow = sim.broker.read, {0, 1}
    sim.broker.read = lambda one: fail("slow") if one.partition in slow else read(one)  # type: ignore[assignment,method-assign]
    feed(sim, 6)
    sim.broker.times_ms |= {("flights", p, n): 10 * n for p in range(2) for n in range(3)}
    until(sim, lambda: times(sim)[0] == {"0": 20, "1": 20})
    asked = sim.broker.times_asked
    slow.remove(1)
    until(sim, lambda: times(sim) == [{"0": 20, "1": 0}, 20, 20])
    assert sim.broker.times_asked == asked


def test_a_time_that_is_told_too_late_is_none(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    go_on, late = slowed(sim), []
    monkeypatch.setattr(StreamWatch, "spans", lambda *asked: late.append(asked[2]))
    feed(sim, 6)
    until(sim, lambda: late)
    go_on()
    until(sim, lambda: times(sim) == [{"0": 0, "1": 0}, 0, 0])
    late[0]({0: 740, 1: 30})
    assert times(sim) == [{"0": 0, "1": 0}, 0, 0]


def _not_expected(error: PenstockError) -> None:
    raise error


def test_looks_go_on_while_times_are_asked_for() -> None:
    lanes, seen = StepLanes(), []
    source = SimpleNamespace(available=lambda: SeenTopic("t", {}), spans_ms=lambda _ranges: {})
    processor = MailboxProcessor(name="overlord", clock=VirtualClock())
    watch = StreamWatch(source, "hold", CallDispatcher(lanes, processor), "stream")
    watch.spans({0: (0, 1)}, lambda _spans: fail("not answered yet"), _not_expected)
    times = lanes.waiting()
    watch.poll(lambda: seen.append(1), _not_expected)
    (looks,) = set(lanes.waiting()) - set(times)
    lanes.run_one(looks)
    while processor.run_mailbox_step():
        pass
    assert seen == [1]


def test_an_unknown_partition_is_refused_with_the_first_known_ones() -> None:
    lanes, processor = StepLanes(), MailboxProcessor(name="overlord", clock=VirtualClock())
    found = SeenTopic("t", {p: AvailableRange("", 0, 1) for p in range(1_000)})
    source = SimpleNamespace(available=lambda: found, stream="t")
    watch = StreamWatch(source, "hold", CallDispatcher(lanes, processor), "stream")
    watch.poll(lambda: None, _not_expected)
    (lane,) = lanes.waiting()
    lanes.run_one(lane)
    while processor.run_mailbox_step():
        pass
    with pytest.raises(InvalidRequest, match=r"use one of 0, 1, .*, 19, … \(1,000 in total\)$"):
        watch.check({1_000: 0})


def test_without_the_wish_nobody_asks_for_times(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    slowed(sim)
    feed(sim, 6)
    sim.run(60)
    assert times(sim) == [None, None, None]
    assert sim.broker.times_asked == 0


def test_a_time_that_cannot_be_told_is_an_error_in_the_status_and_no_time(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make({"offsetFetchPeriod": "PT2S"}, taskDuration="PT1H", emitTimeLagMetrics=True)
    go_on = slowed(sim)
    feed(sim, 6)
    timed(sim, 0, 5, 5)
    until(sim, lambda: times(sim)[1] == 10)
    with monkeypatch.context() as broken:
        broken.setattr(sim.broker, "append_time_ms", lambda *_place: fail("no times today"))
        until(sim, lambda: times(sim)[1] is None)
        until(sim, lambda: "no times today" in str(status(sim)["recentErrors"]))
    until(sim, lambda: times(sim)[1] == 10)
    assert status(sim)["healthy"]
    go_on()
    until(sim, lambda: sim.visible() == sim.good)


def test_a_slow_broker_is_asked_for_ten_seconds_and_then_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, broker = VirtualClock(), FakeBroker()
    broker.create("t", 7)
    told = broker.append_time_ms

    def slow(*place: Any) -> Any:
        clock.advance(1)
        return told(*place)

    monkeypatch.setattr(broker, "append_time_ms", slow)
    source = TopicSupplier(broker, clock, "t")
    wanted = dict.fromkeys(range(7), (0, 1))
    assert list(source.spans_ms(wanted)) == [0, 1, 2, 3, 4]
    assert list(source.spans_ms(wanted)) == [5, 6, 0, 1, 2]


def test_the_newest_offsets_are_asked_for_as_often_as_the_spec_says(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make({"offsetFetchPeriod": "PT30S"}, taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    looks = looks_of(sim, monkeypatch)
    sim.run(300)
    assert len(looks) in range(9, 12)
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)  # Tasks do not wait for it.
    until(sim, lambda: status(sim)["latestOffsets"] == {"0": 6, "1": 6})


def test_who_moves_offsets_to_what_was_not_seen_yet_may_do_so_a_moment_later(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT10M"}, taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    feed(sim, 6)
    desk = sim.overlord.supervisor_service
    with pytest.raises(InvalidRequest, match="offsets 0 to 3, so reading cannot continue at 6"):
        ask(sim, desk.reset("flights", {0: 6}))
    sim.run(3)
    ask(sim, desk.reset("flights", {0: 6}))
    assert offsets(sim)[0] == 6


def test_without_tasks_it_rests_also_where_it_fetches_seldom(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, advance = [], Reconciler.advance
    monkeypatch.setattr(
        Reconciler, "advance", lambda *one, **named: ended.append(1) or advance(*one, **named)
    )
    sim = make({"offsetFetchPeriod": "PT10M"}, taskDuration="PT1H", period="PT20S")
    ask(sim, sim.overlord.supervisor_service.suspend_all(suspended=True))
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.run(25)
    ended.clear()
    sim.run(100)
    assert 4 <= len(ended) <= 6


def test_a_lost_task_is_made_up_for_without_waiting_for_the_period(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make({"offsetFetchPeriod": "PT10M"}, taskDuration="PT1H")
    feed(sim, 6)
    (task,) = running(sim)
    looks = looks_of(sim, monkeypatch)
    assert ask(sim, sim.overlord.shutdown_task(task)) is True
    until(sim, lambda: running(sim) != [task], 30)
    assert looks
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)


def test_tasks_take_turns_though_what_was_seen_of_the_stream_is_old(
    make: Callable[..., Simulation],
) -> None:
    sim = make({"offsetFetchPeriod": "PT10M"}, taskDuration="PT20S")
    for _ in range(3):
        feed(sim, 6)
        until(sim, lambda: sim.visible() == sim.good)
        before = running(sim)
        until(sim, partial(_runs_others, sim, before))
    until(sim, lambda: sum((offsets(sim) or {}).values()) == sim.sent)
    assert sim.published() == sim.good


def test_answers_of_tasks_are_waited_for_as_long_as_the_spec_says_now(
    make: Callable[..., Simulation],
) -> None:
    sim = make({**PLAIN, "httpTimeout": "PT2.5S"}, taskDuration="PT1H")
    before = running(sim)
    assert sim.answer_ms == 2_500
    ask(sim, sim.overlord.supervisor_service.submit(spec_json(PLAIN, taskDuration="PT1H")))
    until(sim, lambda: sim.answer_ms == 10_000)
    sim.run(10)
    assert running(sim) == before


def test_what_only_the_supervisor_heeds_makes_no_other_tasks() -> None:
    plain = make_spec(PLAIN)
    paced = make_spec({**PLAIN, "offsetFetchPeriod": "PT10S", "httpTimeout": "PT20S"})
    assert base_sequence_name(plain, {0: 1}) == base_sequence_name(paced, {0: 1})
    assert update_action(plain, paced) is UpdateAction.RESTART_SUPERVISOR
    # They are kept with the spec.
    assert parse_supervisor_spec(paced.to_json()) == paced
    assert paced.tuning.http_timeout == 20_000


@pytest.mark.parametrize(
    ("tuning", "says"),
    [
        ({"httpTimeout": "PT6M"}, "tuningConfig.httpTimeout: must be at most PT300S"),
        ({"httpTimeout": 0}, "tuningConfig.httpTimeout: must be longer than 0"),
        ({"offsetFetchPeriod": "PT0S"}, "offsetFetchPeriod: must be longer than 0"),
        ({"offsetFetchPeriod": "soon"}, "tuningConfig.offsetFetchPeriod"),
    ],
)
def test_times_that_cannot_be_are_refused_by_name(tuning: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make_spec(tuning)


def test_a_wish_is_yes_or_no() -> None:
    with pytest.raises(SpecError, match=r"ioConfig\.emitTimeLagMetrics"):
        make_spec(emitTimeLagMetrics="often")


def lag_of(history: LagHistory) -> list[tuple[int, int, int]]:
    found = history.samples()
    return list(zip(found.times_ms, found.messages, found.oldest_ms, strict=True))


def test_the_lag_of_the_last_hour_says_how_old_the_oldest_unread_message_is() -> None:
    history = LagHistories().of("s")
    ends = {0: 0, 20: 5, 40: 5, 60: 9}
    for second in range(61):
        end = max(n for at, n in ends.items() if at <= second)
        read = 3 if second >= 45 else 0
        history.note(second * 1_000, {0: (read, end), 1: (7, 7)})
    assert lag_of(history) == [
        (0, 0, 0),
        (10_000, 0, 0),
        (20_000, 5, 0),
        (30_000, 5, 10_000),
        (40_000, 5, 20_000),
        (50_000, 2, 30_000),
        (60_000, 6, 40_000),
    ]
    history.note(70_000, {0: (5, 9)})  # the five of second 20 were read
    assert lag_of(history)[-1] == (70_000, 4, 10_000)
    history.note(80_000, {0: (0, 2)})  # another stream has the name
    assert lag_of(history)[-1] == (80_000, 2, 0)


def test_the_lag_of_very_many_supervisors_takes_bounded_memory() -> None:
    histories = LagHistories(samples_of_all_max=1_000)
    alone = histories.of("0")
    for number in range(1_000):
        alone.note(number * 10_000, {0: (0, number + 1)})
    assert len(lag_of(alone)) == SAMPLES_MAX
    assert lag_of(alone)[-1] == (9_990_000, 1_000, 9_990_000)  # the marks were thinned out
    for number in range(1, 100):
        histories.of(str(number)).note(0, {0: (0, 1)})
    alone.note(10_000_000, {0: (0, 1_001)})
    assert len(lag_of(alone)) == 10
    for number in range(1, 100):
        histories.forget(str(number))
    assert histories.samples_max == SAMPLES_MAX

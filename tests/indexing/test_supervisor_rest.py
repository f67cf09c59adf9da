"""A supervisor that has nothing to do costs little, and is awake at once when wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from penstock.indexing.supervisor import reconciler
from penstock.indexing.task_spec import is_made_by
from tests.indexing.indexing_kit import spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, feed, running, until


def test_suspended_without_tasks_it_looks_once_in_a_period(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H", period="PT20S")
    looks = []
    available = sim.broker.available
    monkeypatch.setattr(
        sim.broker, "available", lambda *args, **named: looks.append(1) or available(*args, **named)
    )
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.suspend_all(suspended=True))
    until(sim, lambda: not sim.overlord.active_tasks())
    assert sim.published() == sim.good
    sim.run(25)
    looks.clear()
    sim.run(100)
    assert 4 <= len(looks) <= 6
    feed(sim, 6)
    ask(sim, sim.overlord.supervisor_service.suspend_all(suspended=False))
    assert until(sim, lambda: sim.visible() == sim.good, 15) is None


def test_what_a_reset_wants_to_be_kept_is_held_at_once(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H", period="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.suspend_all(suspended=True))
    until(sim, lambda: not sim.overlord.active_tasks())
    sim.run(10)
    held = []
    set_cursor = sim.broker.set_cursor

    def record(topic: str, name: str, offsets: Mapping[int, int]) -> None:
        held.append(dict(offsets))
        return set_cursor(topic, name, offsets)

    monkeypatch.setattr(sim.broker, "set_cursor", record)
    ask(sim, sim.overlord.supervisor_service.reset("flights", {0: 1}))
    sim.run(10)
    assert held
    assert held[-1][0] == 1


def test_a_group_is_held_against_a_spec_once(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is worked out of the whole spec, which took more than all else of a quiet round."""
    sim = make(taskDuration="PT1H")
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    judged = []
    monkeypatch.setattr(
        reconciler, "is_made_by", lambda *args: judged.append(args[1].id) or is_made_by(*args)
    )
    sim.run(60)
    assert judged == []
    (task,) = running(sim)
    ask(sim, sim.overlord.supervisor_service.submit(spec_json(taskDuration="PT2H")))
    sim.run(60)
    assert judged == [task]

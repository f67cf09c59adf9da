"""Whatever dies, whenever: every event is published once, and the counts are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.indexing.simulation_kit import Simulation


def drain(sim: Simulation) -> None:
    """No more accidents: publish everything that was sent."""
    sim.chaos = False
    sim.broker.down = False
    sim.overlord.supervisor_service.resume("flights")

    def all_published() -> bool:
        committed = sim.metadata.offsets("flights") or {}
        topic = sim.broker.topics["flights"]
        return all(committed.get(p) == len(messages) for p, messages in enumerate(topic))

    assert sim.run(300, all_published), f"not all is published: {sim.tell()}"


def check(sim: Simulation) -> None:
    assert sim.published() == sim.good, sim.tell()
    counts = sim.metadata.counts("flights")
    assert counts.processed == len(sim.good), sim.tell()
    assert counts.unparseable == sim.bad, sim.tell()
    assert len(set(sim.letters())) == sim.bad, sim.tell()


def test_a_quiet_day(tmp_path: Path) -> None:
    sim = Simulation(tmp_path, seed=0)
    for _ in range(10):
        sim.publish(30)
        sim.run(5)
        assert sim.visible() == sim.good
    drain(sim)
    check(sim)
    assert len(sim.letters()) == sim.bad
    sim.metadata.close()


@pytest.mark.parametrize(
    ("seed", "replicas"), [*((seed, 1) for seed in range(1, 3)), (7, 2), (9, 3)]
)
def test_accidents_at_any_step_lose_and_double_nothing(
    tmp_path: Path, seed: int, replicas: int
) -> None:
    tuning = {"maxRowsPerSegment": 60, "maxTotalRows": 90} if seed % 3 else None
    # No more slots than tasks that read, every other time: those that publish are in their way.
    tasks = 1 + seed % 2
    slots = tasks if seed % 4 > 1 else 4
    sim = Simulation(
        tmp_path,
        seed,
        tuning,
        slots=slots,
        workers=replicas,
        taskCount=tasks,
        replicas=replicas,
    )
    sim.run(3)
    sim.chaos, sim.peon_death, sim.engine_loss = True, 0.01, 0.05
    committed: dict[int, int] = {}
    for _ in range(25):
        sim.publish(sim.random.randrange(40))
        sim.run(3)
        seen = sim.visible()
        assert len(seen) == len(set(seen)), f"doubled for a query: {sim.tell()}"
        now = sim.metadata.offsets("flights") or {}
        assert all(now[p] >= offset for p, offset in committed.items()), sim.tell()
        committed = now
    drain(sim)
    check(sim)
    sim.metadata.close()

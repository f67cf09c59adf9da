"""What stories of overlord and supervisor are told with."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from penstock.core.errors import Unavailable
from tests.indexing.indexing_kit import event
from tests.indexing.simulation_kit import Simulation

Answer = TypeVar("Answer")


def feed(sim: Simulation, count: int) -> None:
    for _ in range(count):
        n, sim.sent = sim.sent, sim.sent + 1
        sim.good.append(n)
        sim.broker.add("flights", n % 2, [event(n)])


def ask(sim: Simulation, future: Future[Answer]) -> Answer:
    sim.run(60, future.done)
    return future.result()


def status(sim: Simulation) -> dict[str, Any]:
    shown: Any = ask(sim, sim.overlord.supervisor_service.status("flights"))
    payload: dict[str, Any] = shown["payload"]
    return payload


def counts(sim: Simulation) -> list[int]:
    """Return the task counts of the spec's versions, the newest first."""
    payloads: list[Any] = [
        row.payload for row in sim.overlord.supervisor_service.history("flights")
    ]
    return [one["spec"]["ioConfig"]["taskCount"] for one in payloads]


def slowed(sim: Simulation) -> Callable[[], None]:
    """Have the engine read nothing until what this returns is called."""
    read, slow = sim.broker.read, [True]
    sim.broker.read = lambda wanted: fail("the engine is slow") if slow else read(wanted)  # type: ignore[method-assign]
    return slow.clear


def running(sim: Simulation, count: int = 1) -> list[str]:
    """Return the tasks that read, once there are so many."""
    found: list[str] = []

    def enough() -> bool:
        tasks = status(sim)["activeTasks"]
        found[:] = [task["id"] for task in tasks if task["phase"] == "READING"]
        return len(found) >= count

    until(sim, enough)
    return found


def until(
    sim: Simulation,
    condition: Callable[[], object],
    seconds: int = 120,
) -> None:
    assert sim.run(seconds, lambda: bool(condition())), sim.tell()


def offsets(sim: Simulation) -> dict[int, int]:
    """Return the committed offsets; empty before the first commit."""
    return sim.metadata.offsets("flights") or {}


def fail(text: str) -> NoReturn:
    raise Unavailable(text)

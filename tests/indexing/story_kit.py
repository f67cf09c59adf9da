"""What stories of overlord and supervisor are told with."""

from __future__ import annotations

from indexing_kit import event

from penstock.core.errors import Unavailable


def feed(sim, count):
    for _ in range(count):
        n, sim.sent = sim.sent, sim.sent + 1
        sim.good.append(n)
        sim.broker.add("flights", n % 2, [event(n)])


def ask(sim, future):
    sim.run(60, future.done)
    return future.result()


def status(sim):
    return ask(sim, sim.overlord.supervisor_service.status("flights"))["payload"]


def counts(sim):
    """Return the task counts of the spec's versions, the newest first."""
    history = sim.overlord.supervisor_service.history("flights")
    return [row.payload["spec"]["ioConfig"]["taskCount"] for row in history]


def slowed(sim):
    """Have the engine read nothing until what this returns is called."""
    read, slow = sim.broker.read, [True]
    sim.broker.read = lambda wanted: fail("the engine is slow") if slow else read(wanted)
    return slow.clear


def running(sim, count=1):
    """Return the tasks that read, once there are so many."""
    found: list[str] = []

    def enough():
        tasks = status(sim)["activeTasks"]
        found[:] = [task["id"] for task in tasks if task["phase"] == "READING"]
        return len(found) >= count

    until(sim, enough)
    return found


def until(sim, condition, seconds=120):
    assert sim.run(seconds, condition), sim.tell()


def offsets(sim):
    return sim.metadata.offsets("flights")


def fail(text):
    raise Unavailable(text)

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
    return ask(sim, sim.overlord.supervisor_desk.status("flights"))["payload"]


def running(sim, count=1):
    """Return the tasks that read, once there are so many."""

    def found():
        return [t["id"] for t in status(sim)["activeTasks"] if t["phase"] == "READING"]

    until(sim, lambda: len(found()) >= count)
    return found()


def until(sim, condition, seconds=120):
    assert sim.run(seconds, condition), sim.tell()


def offsets(sim):
    return sim.metadata.offsets("flights")


def fail(text):
    raise Unavailable(text)

"""A whole flow on disk: a chain of five processors, and a million FlowFiles that wait.

The peer of the chain is what one writes without such a service: five threads with a `queue.Queue`
between each two, which loses everything with the process. A million FlowFiles are queued by one
process, and found again by another: the first is killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.table import Row, against, print_rows
from penstock.core.clock import SystemClock
from penstock.core.garbage_collection import collect_for_flows
from penstock.core.uuids import RandomUuids
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.repository.commit_spool import SpoolOptions
from penstock.storage.disk import OsFileSystem

CHAIN = 300_000
ONE_BY_ONE = 10_000
MILLION = 1_000_000
BATCH = 1_000
AIM_CHAIN = 60_000.0
AIM_RSS_MB = 400.0
AIM_RECOVERY_S = 10.0
ATTRIBUTES = ("customer", "order", "country", "status", "priority")


class Make(Processor):
    """Makes FlowFiles with five attributes."""

    input = InputRequirement.FORBIDDEN
    count = Property(int, default=CHAIN)
    success = Relationship("All.")
    made = 0

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        count = min(BATCH, self.count - self.made)
        if count <= 0:
            context.yield_(60_000)
            return
        each = [
            {name: f"{name}-{number % 1_000}" for name in ATTRIBUTES}
            for number in range(self.made, self.made + count)
        ]
        session.transfer(session.create(each=each), self.success)
        self.made += count


class Pass(Processor):
    """Passes on."""

    input = InputRequirement.REQUIRED
    batch = Property(int, default=BATCH)
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:  # noqa: ARG002
        session.transfer(session.get_many(self.batch), self.success)


class End(Processor):
    """Counts what arrives."""

    input = InputRequirement.REQUIRED
    batch = Property(int, default=BATCH)
    count = 0
    wanted = CHAIN
    done = threading.Event()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:  # noqa: ARG002
        taken = session.get_many(self.batch)
        session.remove(taken)
        End.count += len(taken)
        if End.count >= End.wanted:
            End.done.set()


CHAIN_FLOW = """
name: chain
processors:
  Make: {{type: Make, properties: {{count: {count}}}}}
  A: {{type: Pass, properties: {{batch: {batch}}}}}
  B: {{type: Pass, properties: {{batch: {batch}}}}}
  C: {{type: Pass, properties: {{batch: {batch}}}}}
  End: {{type: End, properties: {{batch: {batch}}}}}
connections:
  - {{from: Make.success, to: A}}
  - {{from: A.success, to: B}}
  - {{from: B.success, to: C}}
  - {{from: C.success, to: End}}
"""
MILLION_FLOW = f"""
name: million
processors:
  Make: {{type: Make, properties: {{count: {MILLION}}}}}
  End: {{type: End}}
connections:
  - from: Make.success
    to: End
    back_pressure_count: 0
    prioritizers: PriorityAttributePrioritizer
"""


def open_flow(folder: str, provenance: SpoolOptions | None = None) -> FlowController:
    collect_for_flows()  # as the flow service does
    return FlowController.open(
        folder,
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry({kind.__name__: kind for kind in (Make, Pass, End)}),
        new_uuid=RandomUuids(),
        environment={},
        options=ControllerOptions(provenance=provenance),
    )


def chain(
    folder: str,
    count: int = CHAIN,
    batch: int = BATCH,
    provenance: SpoolOptions | None = None,
) -> tuple[float, float]:
    """Send FlowFiles through five processors, durable within the sync interval.

    Returns:
        How many a second by the wall, and by the processor time of all threads, which is what the
        wall says where nobody else works.
    """
    End.count, End.wanted = 0, count
    End.done.clear()
    controller = open_flow(folder, provenance)
    controller.apply(read_flow(CHAIN_FLOW.format(count=count, batch=batch)).flow)
    started, worked = time.perf_counter(), time.process_time()
    controller.start()
    assert End.done.wait(600)
    took, work = time.perf_counter() - started, time.process_time() - worked
    controller.close()
    return count / took, count / work


def threads_and_queues() -> float:
    """Return the same for five threads with queues between them, one item at a time."""
    queues: list[queue.Queue[dict[str, str] | None]] = [queue.Queue(10_000) for _ in range(4)]

    def make() -> None:
        for number in range(CHAIN):
            queues[0].put({name: f"{name}-{number % 1_000}" for name in ATTRIBUTES})
        queues[0].put(None)

    def hand_on(source: int) -> None:
        while (item := queues[source].get()) is not None:
            if source + 1 < len(queues):
                queues[source + 1].put(item)
        if source + 1 < len(queues):
            queues[source + 1].put(None)

    workers = [threading.Thread(target=make)]
    workers += [threading.Thread(target=hand_on, args=(number,)) for number in range(4)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return CHAIN / (time.perf_counter() - started)


def fill(folder: str) -> None:
    """Queue a million in this process, say what it took, and wait to be killed."""
    controller = open_flow(folder)
    controller.apply(read_flow(MILLION_FLOW).flow)
    started = time.perf_counter()
    controller.start("Make")
    queued = controller.queue("Make.success -> End")
    while queued.size.count < MILLION:
        time.sleep(0.05)
    took = time.perf_counter() - started
    controller.stop("Make")
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(json.dumps({"took_s": took, "rss_mb": rss / 2**20}), flush=True)
    signal.pause()


def recover(folder: str) -> None:
    """Open what the killed process left, and say how long it took."""
    started = time.perf_counter()
    controller = open_flow(folder)
    took = time.perf_counter() - started
    count = controller.queue("Make.success -> End").size.count
    first = controller.queue("Make.success -> End").poll().flowfiles[0].attributes["priority"]
    print(json.dumps({"took_s": took, "count": count, "first": first}), flush=True)
    os._exit(0)


def _child(what: str, folder: str) -> tuple[subprocess.Popen[str], dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.flow", what, folder]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, json.loads(child.stdout.readline())


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        passed, by_work = chain(f"{folder}/chain")
        _, one_by_one = chain(f"{folder}/one", ONE_BY_ONE, 1)
        peer = threads_and_queues()
        million = f"{folder}/million"
        filling, filled = _child("fill", million)
        filling.kill()
        filling.wait()
        recovering, found = _child("recover", million)
        recovering.wait()
    assert found["count"] == MILLION
    made = MILLION / filled["took_s"]
    return [
        against(
            "flow: chain of five processors, on disk",
            passed,
            "FlowFiles/s",
            "threads, queue.Queue, nothing kept",
            peer,
        ),
        against("flow: the same", passed, "FlowFiles/s", "aim", AIM_CHAIN, ">= 1"),
        Row("flow: the same, of processor time", by_work, "FlowFiles/s"),
        Row("flow: one FlowFile a session, of processor time", one_by_one, "FlowFiles/s"),
        Row("flow: a million made and queued, by priority", made, "FlowFiles/s"),
        against(
            "flow: memory of the process then",
            filled["rss_mb"],
            "MiB",
            "the bound",
            AIM_RSS_MB,
            "< 1",
        ),
        against(
            "flow: recovery of a million after kill -9",
            found["took_s"],
            "s",
            "the bound",
            AIM_RECOVERY_S,
            "< 1",
        ),
    ]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        {"fill": fill, "recover": recover}[sys.argv[1]](sys.argv[2])
    else:
        print_rows(run())

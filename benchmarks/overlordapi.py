"""How long lists of many tasks take over the overlord's API: active ones and ended ones.

    .venv/bin/python -m benchmarks.overlordapi [TASKS]

The application is asked in its process, without a network, so that what is measured is the answer;
by the wall, the best of some, beside the 100 ms that an answer may take.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx
from starlette.applications import Starlette

from benchmarks.table import Row, against, print_rows
from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.mailbox import MailboxThread
from penstock.mailbox.lanes import ThreadLanes
from penstock.services.api.asgi import application
from penstock.services.api.indexer.overlord_routes import OverlordParts, overlord_routes
from penstock.storage.metadata import MetadataStore, TaskRow
from penstock.testing.clock import VirtualClock

PREFIX = "/druid/indexer/v1"
REPEATS = 7
TASKS = 10_000
AIM_MS = 100.0


class NoWorkers:
    """Nothing runs: all active tasks are pending."""

    def workers(self) -> tuple[()]:
        """Return none."""
        return ()


async def best_ms(app: Starlette, path: str) -> tuple[float, int, int]:
    """Return the least time of an answer by the wall, its bytes, and how many entries it has."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://overlord") as client:
        taken = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            answer = await client.get(path)
            taken.append((time.perf_counter() - begun) * 1_000)
        assert answer.status_code == 200, answer.text
        return min(taken), len(answer.content), len(answer.json())


def fill(store: MetadataStore, tasks: int, state: str) -> None:
    """Keep tasks of a state."""
    for number in range(tasks):
        task_id = f"{state.lower()}_{number:06}"
        payload = {"type": "noop", "id": task_id, "dataSource": f"d{number % 50}"}
        store.tasks.insert_new(
            [TaskRow(task_id, f"d{number % 50}", "noop", task_id, payload, state=state)]
        )


def run(tasks: int = TASKS) -> list[Row]:
    """Fill a store, lead, and ask."""
    clock = VirtualClock()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        store = MetadataStore.open(f"sqlite:///{Path(folder)}/metadata.db", clock=clock)
        fill(store, tasks, "RUNNING")
        fill(store, tasks, "SUCCESS")
        mailbox = MailboxThread("overlord", clock=clock, daemon=True)
        lanes, lock_lanes = ThreadLanes("overlord"), ThreadLanes("locks")
        overlord = Overlord(
            mailbox.processor,
            OverlordPorts(
                metadata=store,
                broker=None,  # type: ignore[arg-type]  # no supervisor asks for it
                peons=None,  # type: ignore[arg-type]  # as above
                workers=NoWorkers(),
                lanes=lanes,
                lock_lanes=lock_lanes,
                clock=clock,
                new_token=str,
            ),
        )
        mailbox.start()
        overlord.start().result(60)
        parts = OverlordParts(overlord, NoWorkers(), "http://o", clock, lambda *_: None)
        app = application(overlord_routes(parts))
        for path in ("pendingTasks", "completeTasks", "tasks", "tasks?datasource=d7&max=100"):
            took_ms, size, count = asyncio.run(best_ms(app, f"{PREFIX}/{path}"))
            name = f"GET {path}: {count:,} tasks, {size / 1e6:.1f} MB"
            found.append(against(name, took_ms, "ms", "aim", AIM_MS, "< 1"))
        overlord.stop().result(60)
        mailbox.stop()
        mailbox.join(10)
        lanes.close()
        lock_lanes.close()
        store.close()
    return found


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]) if len(sys.argv) > 1 else TASKS))

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
from penstock.core.access.access_control import AccessControl
from penstock.services.api.asgi import application
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.services.large_installation_kit import TASKS, keep_tasks, leading

PREFIX = "/druid/indexer/v1"
REPEATS = 7
AIM_MS = 100.0


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


def run(tasks: int = TASKS) -> list[Row]:
    """Fill a store, lead, and ask."""
    clock = VirtualClock()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        store = MetadataStore.open(f"sqlite:///{Path(folder)}/metadata.db", clock=clock)
        keep_tasks(store, tasks, "RUNNING")
        keep_tasks(store, tasks, "SUCCESS")
        with leading(store, clock) as routes:
            app = application(routes, access=AccessControl.open())
            for path in ("pendingTasks", "completeTasks", "tasks", "tasks?datasource=d7&max=100"):
                took_ms, size, count = asyncio.run(best_ms(app, f"{PREFIX}/{path}"))
                name = f"GET {path}: {count:,} tasks, {size / 1e6:.1f} MB"
                found.append(against(name, took_ms, "ms", "aim", AIM_MS, "< 1"))
        store.close()
    return found


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]) if len(sys.argv) > 1 else TASKS))

"""Event to SQL answer: how old an event is when a SQL answer first counts it.

Runs the real `penstock up` in a temporary folder, publishes at a steady rate and asks for the
highest sequence number again and again. An event's latency is the time from just before its publish
was sent to the arrival of the first answer that includes it, so it holds the publish, the wait for
a batch, the Spark job, the commit, and the query with the wait for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from benchmarks.table import Row, print_rows
from penstock.broker.broker_client import BrokerClient

BATCHES_PER_S = 50
# (events a second, what p50 and p95 aim at, in seconds)
LOADS = ((1_000, 2.0, 4.0), (20_000, 3.0, 6.0))


def spec(name: str) -> dict[str, object]:
    """Return the supervisor of a topic and a datasource of this name."""
    return {
        "type": "penstock",
        "spec": {
            "dataSchema": {
                "dataSource": name,
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {
                    "dimensions": [{"type": "long", "name": "seq"}, "page", "country", "agent"]
                },
                "granularitySpec": {"segmentGranularity": "HOUR", "rollup": False},
            },
            "ioConfig": {
                "topic": name,
                "taskDuration": "PT10M",
                "startDelay": "PT0S",
                "useEarliestOffset": True,
            },
            "tuningConfig": {"type": "penstock"},
        },
    }


@dataclass(slots=True)
class Publisher:
    """Publishes numbered events at a steady rate from a thread; `sent_at[n]` is event n's time."""

    client: BrokerClient
    topic: str
    rate_per_s: int
    seconds: float
    sent_at: list[float]

    def run(self) -> None:
        """Publish until the time is over; a late batch is sent at once, so the rate holds."""
        start = time.perf_counter()
        batch = self.rate_per_s // BATCHES_PER_S
        for turn in range(int(self.seconds * BATCHES_PER_S)):
            delay = start + turn / BATCHES_PER_S - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            now_ms = time.time_ns() // 1_000_000
            first = turn * batch
            events = [
                json.dumps(
                    {
                        "time": now_ms,
                        "seq": first + i,
                        "page": f"/p/{(first + i) % 100}",
                        "country": "CH",
                        "agent": "benchmark",
                    }
                ).encode()
                for i in range(batch)
            ]
            sent = time.perf_counter()
            self.client.publish(self.topic, events)
            self.sent_at.extend([sent] * batch)


def wait_until_ready(folder: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return the addresses of a running Penstock."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit("penstock up ended early; see its log folder")
        file = folder / "penstock.json"
        if file.exists():
            addresses: dict[str, str] = json.loads(file.read_text())
            return addresses
        time.sleep(0.05)
    raise SystemExit("penstock up was not ready within 90 s")


def measure(http: str, broker: str, rate_per_s: int, seconds: float) -> np.ndarray:
    """Return the latencies in seconds, one for each event that was counted."""
    name = f"latency{rate_per_s}"
    supervisors = f"{http}/druid/indexer/v1/supervisor"
    with httpx.Client(timeout=60) as api:
        BrokerClient(broker).create_topic(name, 2)
        api.post(supervisors, json=spec(name)).raise_for_status()
        publisher = Publisher(BrokerClient(broker), name, rate_per_s, seconds, [])
        thread = threading.Thread(target=publisher.run)
        thread.start()
        latencies: list[float] = []
        counted = 0
        query = {
            "query": f"SELECT max(seq) AS m, count(*) AS n FROM {name}",
            "resultFormat": "array",
        }
        total = int(seconds * BATCHES_PER_S) * (rate_per_s // BATCHES_PER_S)
        deadline = time.monotonic() + seconds + 60
        while counted < total and time.monotonic() < deadline:
            answer = api.post(f"{http}/druid/v2/sql", json=query)
            arrived = time.perf_counter()
            if answer.status_code != 200 or not answer.json() or answer.json()[0][1] in (None, 0):
                time.sleep(0.1)
                continue
            # Two partitions may be read to different depths: count rows, not the maximum.
            rows = answer.json()[0][1]
            latencies += [arrived - sent for sent in publisher.sent_at[counted:rows]]
            counted = max(counted, rows)
        thread.join()
        # The next load has the machine for itself.
        api.post(f"{supervisors}/{name}/terminate").raise_for_status()
    return np.array(latencies)


def run(seconds: float = 40.0, warm_up_s: float = 10.0) -> list[Row]:
    """Run Penstock, measure, stop it."""
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as name:
        folder = Path(name) / "data"
        started = time.perf_counter()
        command = [
            sys.executable, "-m", "penstock", "up", "--data-dir", str(folder),
            "--http", "127.0.0.1:0", "--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {}
        )
        try:
            addresses = wait_until_ready(folder, process)
            ready_s = time.perf_counter() - started
            rows = [Row("penstock up to ready", ready_s, "s", "aim", 15.0, ready_s / 15.0, "< 1")]
            for rate_per_s, *aims in LOADS:
                latencies = measure(
                    addresses["http"], addresses["broker_http"], rate_per_s, seconds + warm_up_s
                )
                rows += latency_rows(latencies[int(warm_up_s * rate_per_s) :], rate_per_s, aims)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return rows


def latency_rows(steady: np.ndarray, rate_per_s: int, aims: Sequence[float]) -> list[Row]:
    """Return how old events are when they are first counted."""
    found = []
    for percentile, aim in zip((50, 95), aims, strict=True):
        value = float(np.percentile(steady, percentile))
        name = f"event to SQL answer p{percentile}, {rate_per_s:,}/s"
        found.append(Row(name, value, "s", "aim", aim, value / aim, "< 1"))
    return found


if __name__ == "__main__":
    print_rows(run())

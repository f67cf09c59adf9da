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
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from benchmarks.table import Row, print_rows
from penstock.broker.client import BrokerClient

RATE_PER_S = 1_000
BATCH = 20

SPEC = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "latency",
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {
                "dimensions": [{"type": "long", "name": "seq"}, "page", "country", "agent"]
            },
            "granularitySpec": {"segmentGranularity": "HOUR", "rollup": False},
        },
        "ioConfig": {"topic": "latency", "taskDuration": "PT10M", "useEarliestOffset": True},
        "tuningConfig": {"type": "penstock"},
    },
}


@dataclass(slots=True)
class Publisher:
    """Publishes numbered events at a steady rate from a thread; `sent_at[n]` is event n's time."""

    client: BrokerClient
    seconds: float
    sent_at: list[float]

    def run(self) -> None:
        """Publish until the time is over; a late batch is sent at once, so the rate holds."""
        start = time.perf_counter()
        for turn in range(int(self.seconds * RATE_PER_S / BATCH)):
            delay = start + turn * BATCH / RATE_PER_S - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            now_ms = time.time_ns() // 1_000_000
            first = turn * BATCH
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
                for i in range(BATCH)
            ]
            sent = time.perf_counter()
            self.client.publish("latency", events)
            self.sent_at.extend([sent] * BATCH)


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


def measure(http: str, broker: str, seconds: float) -> np.ndarray:
    """Return the latencies in seconds, one for each event that was counted."""
    with httpx.Client(timeout=60) as api:
        BrokerClient(broker).create_topic("latency", 2)
        api.post(f"{http}/druid/indexer/v1/supervisor", json=SPEC).raise_for_status()
        publisher = Publisher(BrokerClient(broker), seconds, [])
        thread = threading.Thread(target=publisher.run)
        thread.start()
        latencies: list[float] = []
        counted = 0
        query = {
            "query": "SELECT max(seq) AS m, count(*) AS n FROM latency",
            "resultFormat": "array",
        }
        total = int(seconds * RATE_PER_S)
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
            latencies = measure(addresses["http"], addresses["broker_http"], seconds + warm_up_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    steady = latencies[int(warm_up_s * RATE_PER_S) :]
    p50, p95 = (float(np.percentile(steady, q)) for q in (50, 95))
    return [
        Row("penstock up to ready", ready_s, "s", "aim", 15.0, ready_s / 15.0, "< 1"),
        Row(f"event to SQL answer p50, {RATE_PER_S}/s", p50, "s", "aim", 2.0, p50 / 2.0, "< 1"),
        Row(f"event to SQL answer p95, {RATE_PER_S}/s", p95, "s", "aim", 4.0, p95 / 4.0, "< 1"),
    ]


if __name__ == "__main__":
    print_rows(run())

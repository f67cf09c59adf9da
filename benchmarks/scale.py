"""Many topics: how long a broker takes to start on 100,000 of them, and in how much memory.

Each topic has one stream partition with one message. The folder is made by copying what the storage
wrote for one topic; then a broker's process opens it. The limit beside it is a program that lists
the same folders and reads the same files, and does nothing with them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.processes import Broker, Child, cpu_s, resident_mib
from benchmarks.table import Row, against, print_rows
from penstock.broker.topics.topic_file import FILE_NAME, ID_FILE_NAME, TopicFile
from penstock.broker.topics.topic_registry import Topics

TOPICS = int(os.environ.get("PENSTOCK_BENCH_TOPICS", "100000"))
IDLE_S = 5.0


def run() -> list[Row]:
    """Measure."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        make_topics(Path(folder), TOPICS)
        begin = time.perf_counter()
        read_everything(folder)
        reading_s = time.perf_counter() - begin
        begin = time.perf_counter()
        with Child(Broker(folder)) as (_, pid):
            ready_s = time.perf_counter() - begin
            resident = resident_mib(pid)
            busy_s = starting_s = cpu_s(pid)
            time.sleep(IDLE_S)
            idle = (cpu_s(pid) - busy_s) / IDLE_S * 100
            begin = time.perf_counter()
        stopping_s = time.perf_counter() - begin
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        against(f"{TOPICS:,} topics: start", ready_s, "s", "aim", 10.0, "< 1"),
        against("", ready_s, "s", "reading the files", reading_s),
        against("processor time of it", starting_s, "s", "aim", 10.0, "< 1"),
        against("memory", resident, "MiB", "aim", 1_500.0, "< 1"),
        Row("processor while nothing happens", idle, "%"),
        Row("stop", stopping_s, "s"),
    ]


def make_topics(folder: Path, count: int) -> None:
    """Fill a folder with topics of one message each."""
    model = Topics.open(str(folder))
    topic = model.create("model", 1)
    topic.append(0, [b"x" * 200], 200)
    model.close()
    (log,) = (folder / "model" / "0").iterdir()
    content = log.read_bytes()
    for number in range(count - 1):
        name = f"topic-{number:06d}"
        place = folder / name
        (place / "0").mkdir(parents=True)
        file = TopicFile(1, f"{number:032x}", held=(0,))
        (place / FILE_NAME).write_bytes(file.to_bytes(name))
        (place / ID_FILE_NAME).write_text(f"{file.id}\n")
        (place / "0" / log.name).write_bytes(content)


def read_everything(folder: str) -> None:
    """Read every file below a folder, and nothing more."""
    for path, _, names in os.walk(folder):
        for name in names:
            fd = os.open(f"{path}/{name}", os.O_RDONLY)
            os.read(fd, 1 << 14)
            os.close(fd)


if __name__ == "__main__":
    print_rows(run())

"""The disk queue and real processes: kill -9, and two on one folder."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from penstock.core.errors import Conflict
from penstock.storage.queue.disk_queue import DiskQueue
from penstock.storage.queue.log_reader import read_range

WRITER = """
import sys
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
queue = DiskQueue.open(sys.argv[1], DiskQueueOptions(max_bytes_per_file=200_000))
queue.cursor("reader").advance(queue.latest)
print("open", queue.latest, flush=True)
while True:
    base = queue.latest
    batch = [b"%d" % offset * 20 for offset in range(base, base + 50)]
    print("ok", queue.append(batch, durable=base % 3 == 0).end, flush=True)
"""


def start_writer(folder):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_kill_9_loses_nothing_that_was_answered(tmp_path):
    folder = str(tmp_path)
    answered = 0
    for answers in (1, 40, 150):
        writer = start_writer(folder)
        assert writer.stdout is not None
        for _ in range(answers + 1):
            answered = int(writer.stdout.readline().split()[1])
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate()
        whole = [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        if whole:
            answered = int(whole[-1].split()[1])
        with DiskQueue.open(folder) as queue:
            assert queue.latest >= answered
            assert queue.verify().messages_lost == 0
            assert queue.statistics().cursors == {"reader": queue.cursor("reader").position}
        parts = read_range(folder, 0, answered)
        found = [message for part in parts for message in part.messages.to_pylist()]
        assert found == [b"%d" % offset * 20 for offset in range(answered)]


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path):
    folder = str(tmp_path)
    with DiskQueue.open(folder) as queue:
        writer = start_writer(folder)
        with writer:
            assert writer.wait() != 0
        assert queue.append([b"a"], durable=True).end == 1
    writer = start_writer(folder)
    assert writer.stdout is not None
    with writer:
        assert writer.stdout.readline() == "open 1\n"
        with pytest.raises(Conflict, match="another process"):
            DiskQueue.open(folder)
        writer.kill()
    DiskQueue.open(folder).close()

"""Warm processes that wait for a task: how many there are, and that none waits for ever.

The processes are real, and do nothing but wait for the end of their input; time is virtual.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mailbox import MailboxProcessor
from penstock.services.config import Address
from penstock.services.roles import peons
from penstock.services.roles.peons import PeonOptions, Peons
from penstock.testing.clock import VirtualClock
from penstock.testing.settling import settle

AGE_MS = 60_000
WAITS = "import sys; sys.stdin.buffer.read()"


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.made: list[subprocess.Popen[bytes]] = []
        options = PeonOptions(spares=2, spare_age_max_ms=AGE_MS)
        files = (folder / "options.json", (Address("127.0.0.1", 1), "w"), folder / "spare.out")
        self.peons = Peons(*files, self.processor, self.clock, options)

    def spawn(self, *_given: object, **_more: object) -> subprocess.Popen[bytes]:
        made = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
        self.made.append(made)
        return made

    def settle(self, seconds: float) -> None:
        settle(self.processor, self.clock, seconds)


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(peons, "spawn", made.spawn)
    made.peons.start(lambda _task_id: None)
    yield made
    for one in made.made:
        one.kill()
        one.communicate()
    made.peons.stop()


def test_a_spare_that_has_waited_too_long_is_replaced(world: World) -> None:
    first = list(world.made)
    assert len(first) == 2
    world.settle(AGE_MS / 1000 - 1)
    assert world.made == first
    world.settle(2)
    assert len(world.made) == 4
    # Their input has ended, which is how a spare hears that nobody wants it.
    assert [spare.wait(30) for spare in first] == [0, 0]
    assert [spare.poll() for spare in world.made[2:]] == [None, None]


def test_one_that_was_taken_is_not_replaced_for_its_age(world: World, tmp_path) -> None:
    taken = world.peons.launch("t1", str(tmp_path))
    assert taken.process is world.made[0]
    world.settle(5)
    assert len(world.made) == 3, "another waits in its place"
    world.settle(AGE_MS / 1000)
    assert taken.exit_code() is None
    assert world.made[1].wait(30) == 0


def test_no_descriptor_outlives_a_peon(world: World, tmp_path) -> None:
    """Each hand-off takes a spare; its timer and its task refer to the process for long after."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = []
    for number in range(6):
        kept.append(world.peons.launch(f"t{number}", str(tmp_path)))
        kept[-1].process.kill()
        kept[-1].process.wait(30)
        deadline = time.monotonic() + 30
        while not kept[-1].process.stdin.closed and time.monotonic() < deadline:
            world.settle(2)
            time.sleep(0.01)  # the end of the process arrives on the watch's thread
        assert kept[-1].process.stdin.closed
    # The tests' own spares have no pipe for words, so nothing but their inputs counts.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_one_that_did_not_hear_is_hung_up_and_waited_for(world: World, tmp_path) -> None:
    deaf = world.made[0]
    assert deaf.stdin is not None
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, deaf.stdin.fileno())  # nobody reads what it is told, as if it had closed it
    os.close(write)
    taken = world.peons.launch("t1", str(tmp_path))
    assert taken.process is world.made[1]
    assert deaf.stdin.closed

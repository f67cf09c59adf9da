"""A flow at work whose process is killed, or whose machine loses its power, at any step."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

from penstock.core.errors import PenstockError, Unavailable
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.repository.options import RepositoryOptions
from penstock.testing.memory_disk import CrashableFileSystem, Disk, PowerLoss
from tests.flow.controller_kit import (
    CHANGED,
    ControllerWorld,
    apply,
    check_conserved,
    number_in,
    settled,
    state_of,
    states,
    tell,
)

TOTAL = 300
FLOW = """
name: line
processors:
  Make: {type: Numbers, properties: {total: 300, batch: 25, with_content: true}}
  Pass: {type: Pass, concurrent_tasks: 2}
  End: {type: Tally, properties: {with_content: true}}
connections:
  - {from: Make.success, to: Pass, swap_threshold: 20, back_pressure_count: 120}
  - from: Pass.success
    to: End
    swap_threshold: 20
    prioritizers: [NewestFlowFileFirstPrioritizer]
"""


class SharedFileSystem(CrashableFileSystem):
    """One that several threads may use; it tells when it is dead."""

    def __init__(self, disk: Disk | None = None) -> None:
        super().__init__(disk)
        self.mutex = threading.RLock()
        self.died = threading.Event()

    def tell_died(self) -> None:
        self.died.set()
        threading.Thread(target=tell).start()  # who waits for it may wait for this file system

    def _replaced(self, disk: Disk) -> SharedFileSystem:
        self.powerless = True
        self.died.set()
        after = SharedFileSystem(disk)
        after.steps = self.steps
        return after

    def step(self, path: str, doing: str):  # type: ignore[no-untyped-def]  # as the base
        try:
            return super().step(path, doing)
        except PowerLoss:
            self.tell_died()
            raise

    def write(self, *given, **named) -> None:  # type: ignore[no-untyped-def]  # passes all on
        try:
            super().write(*given, **named)
        except PowerLoss:
            self.tell_died()
            raise


def _one_at_a_time(name: str):  # type: ignore[no-untyped-def]
    original = getattr(SharedFileSystem, name)

    def guarded(self: SharedFileSystem, *given, **named):  # type: ignore[no-untyped-def]
        with self.mutex:
            return original(self, *given, **named)

    return guarded


for _name in (
    *("create", "open_append", "open_read", "read_bytes", "write_atomically", "listdir", "stat"),
    *("mkdir", "rmdir", "rename", "unlink", "fsync_file", "fsync_folder", "lock_folder"),
    *("crash", "kill_process", "write", "sync", "step"),
):
    setattr(SharedFileSystem, _name, _one_at_a_time(_name))


def open_world(fs: SharedFileSystem) -> ControllerWorld:
    repository = RepositoryOptions(snapshot_bytes=20_000)
    # Threads of a dead process may wait for what its file system does no more.
    options = ControllerOptions(repository=repository, close_limit_s=1.0)
    return ControllerWorld(fs, "/flow", options=options)


def let_go(world: ControllerWorld) -> None:
    """End the threads of a dead process; its file system takes nothing any more."""
    for controller in world.opened:
        with suppress(PowerLoss, PenstockError):
            controller.close()


@pytest.mark.usefixtures("deaths")  # the end of the file system is raised in threads, too
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    chance = random.Random(seed)
    fs = SharedFileSystem()
    deaths = 0
    for _ in range(4):
        fs.kill_at(fs.steps + chance.choice([chance.randint(1, 40), chance.randint(40, 400)]))
        world = open_world(fs)
        run_until_dead(world, fs)
        let_go(world)
        if not fs.died.is_set():
            break
        deaths += 1
        survivor = fs.crash(chance) if chance.random() < 0.5 else fs.kill_process()
        assert isinstance(survivor, SharedFileSystem)
        fs = survivor
        look(fs)
    fs.forget_faults()
    assert deaths
    world = open_world(fs)
    controller = world.open()
    if not controller.applied.revision:
        apply(controller, FLOW)
    controller.start()
    with CHANGED:
        assert CHANGED.wait_for(lambda: counted(controller) >= TOTAL, 120)
    controller.stop()
    assert check_conserved(controller, TOTAL) == TOTAL
    status = controller.status()
    assert (status.repository.flowfiles, status.repository.swapped_flowfiles) == (0, 0)
    controller.close()
    world = open_world(fs)
    status = world.open().status()
    assert (status.content.resources, status.content.orphans_deleted) == (0, 0)
    world.close()


def run_until_dead(world: ControllerWorld, fs: SharedFileSystem) -> None:
    """Let the flow run, until its machine dies or it has come to its end."""
    try:
        controller = world.open()
        if not controller.applied.revision:
            apply(controller, FLOW)
        controller.start()
    except (PowerLoss, PenstockError):
        assert fs.died.is_set()
        return
    with CHANGED:
        assert CHANGED.wait_for(lambda: fs.died.is_set() or counted(controller) >= TOTAL, 120)


def counted(controller: FlowController) -> int:
    return number_in(state_of(controller, "End"), "count")


def look(fs: SharedFileSystem) -> None:
    """See, with nothing running, that what is there is the state after some commit."""
    world = open_world(fs)
    controller = world.open()
    if controller.applied.revision:
        controller.stop()
        check_conserved(controller, TOTAL)
    world.close()


def test_what_cannot_be_kept_is_not_done() -> None:
    fs = SharedFileSystem()
    world = open_world(fs)
    controller = world.open()
    apply(controller, FLOW)
    controller.start("End")
    before = fs.read_bytes("/flow/flow.json")
    fs.read_only = True
    for command in (
        lambda: apply(controller, FLOW.replace("total: 300", "total: 200")),
        lambda: controller.start("Make"),
    ):
        with pytest.raises(Unavailable):
            command()
    assert fs.read_bytes("/flow/flow.json") == before
    assert controller.applied.revision == 1
    assert settled(controller) == {"Make": "stopped", "Pass": "stopped", "End": "running"}
    with pytest.raises(Unavailable):
        controller.stop("End")
    assert states(controller)["End"] == "stopped"  # what writes can be stopped, if not for ever
    fs.read_only = False
    apply(controller, FLOW.replace("total: 300", "total: 200"))
    controller.start()
    with CHANGED:
        assert CHANGED.wait_for(lambda: counted(controller) >= 200, 120)
    world.close()

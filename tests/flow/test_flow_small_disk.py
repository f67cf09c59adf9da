"""A flow whose data folder is on a small disk that is really full for a while."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.controller.controller import ControllerOptions
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import ControllerWorld, apply, state_of, wait_counted

TOTAL = 15_000
FLOW = f"""
name: full
processors:
  Make: {{type: Numbers, properties: {{total: {TOTAL}, batch: 100, with_content: true}}}}
  Pass: {{type: Pass}}
  End: {{type: Tally, properties: {{with_content: true}}}}
connections:
  - {{from: Make.success, to: Pass, swap_threshold: 500}}
  - {{from: Pass.success, to: End}}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 MB, of which 256 MiB are kept free."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    path = disk / "fill"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * (1 << 16))
    return path


def until(condition: Callable[[], bool]) -> None:
    end_s, pause = time.monotonic() + 60, threading.Event()
    while not condition():
        assert time.monotonic() < end_s
        pause.wait(0.05)


def test_nothing_is_lost_while_the_disk_has_no_room(disk: Path) -> None:
    options = ControllerOptions(heap_bytes=1 << 20, stop_limit_s=10.0)
    world = ControllerWorld(OsFileSystem(), str(disk / "flow"), options=options)
    try:
        controller = world.open()
        apply(controller, FLOW)
        controller.start("Make")
        until(lambda: controller.status().connections[0].size.swapped_count > 0)
        filled = fill(disk)
        with pytest.raises(Unavailable, match="no space left on the device; free space"):
            controller.start("Pass")
        filled.unlink()
        controller.start("Pass")
        controller.start("End")
        until(lambda: bool(state_of(controller, "End")))
        filled = fill(disk)

        until(lambda: any(one.scheduling.failures for one in controller.status().components))
        with pytest.raises(Unavailable, match="this could not be stored, so a restart runs them"):
            controller.stop("End")
        controller.close()
        controller = world.open()  # with what is still there, without a byte to write
        controller.close()
        filled.unlink()
        controller = world.open()
        wait_counted(controller, TOTAL)
    finally:
        world.close()

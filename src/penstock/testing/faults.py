"""A disk in memory whose steps are counted, and fail when a test requests it.

Owns: which step fails and how (by number, or the next of a kind), capacity, power, and how much of
a failed step is done. Does not own: the bytes and names (`disk`), nor the operations of a
file system that the steps belong to (`crashable`).

Invariants:

- Without power nothing is read or changed.
- A failed write leaves nothing visible, except the part requested before a power loss.
- A failed sync behaves as Linux does: the pages count as clean but are not durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable
from penstock.testing.disk import Disk, Truncate, Write

if TYPE_CHECKING:
    from penstock.testing.disk import Folder, Inode

_NO_END_BYTES = 1 << 62


class PowerLoss(BaseException):
    """Power is lost at this step. Not an `Exception`, so that nothing catches it and continues."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Effect of a step: an error or a power loss; a write does `keep_bytes` first."""

    power_loss: bool
    keep_bytes: int
    reason: str


class FallibleDisk:
    """Disk whose changing steps are numbered from 1; a test chooses which of them fail.

    Args:
        disk: Initial content; None: empty.

    Attributes:
        steps: Number of steps so far.
        syncs: Number of successful syncs.
        capacity_bytes: Size of the disk; None: unlimited.
        read_only: Every change is refused.
        powerless: Power was lost.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._faults: dict[int, Fault] = {}
        self._next_faults: dict[str, Fault] = {}
        self.steps = 0
        self.syncs = 0
        self.capacity_bytes: int | None = None
        self.read_only = False
        self.powerless = False

    # -- faults

    def fail_at(self, step: int, *, keep_bytes: int = 0, reason: str = "I/O error") -> None:
        """Make a step raise `Unavailable`; a failed write leaves nothing visible."""
        self._faults[step] = Fault(power_loss=False, keep_bytes=keep_bytes, reason=reason)

    def fail_next(self, kind: str, *, keep_bytes: int = 0, reason: str = "I/O error") -> None:
        """Make the next create, append, truncate, fsync, rename or delete raise `Unavailable`."""
        self._next_faults[kind] = Fault(power_loss=False, keep_bytes=keep_bytes, reason=reason)

    def kill_at(self, step: int, *, keep_bytes: int = 0) -> None:
        """Make a step raise `PowerLoss`, after `keep_bytes` of it if it is a write."""
        self._faults[step] = Fault(power_loss=True, keep_bytes=keep_bytes, reason="power loss")

    def forget_faults(self) -> None:
        """Clear all faults, the capacity and the read-only mode."""
        self._faults.clear()
        self._next_faults.clear()
        self.capacity_bytes = None
        self.read_only = False

    # -- room

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        return self._disk.used_bytes()

    def free_bytes(self, folder: str) -> int:  # noqa: ARG002  # one disk for all folders
        """Return the free part of the capacity."""
        if self.capacity_bytes is None:
            return _NO_END_BYTES
        return max(0, self.capacity_bytes - self.used_bytes())

    # -- steps

    def live(self) -> Disk:
        """Return the content.

        Raises:
            PowerLoss: Power was lost.
        """
        if self.powerless:
            raise PowerLoss("this file system lost its power; use the one that crash() returned")
        return self._disk

    def step(self, path: str, doing: str) -> Fault | None:
        """Count a step; raise its fault. A fault of a write is returned, to be done partly.

        Raises:
            Unavailable: The step fails.
            PowerLoss: Power is lost at this step, or was lost before.
        """
        disk = self.live()
        if self.read_only:
            raise Unavailable(f"{path}: cannot {doing}: the file system is read-only")
        self.steps += 1
        fault = self._faults.pop(self.steps, None) or self._next_faults.pop(doing, None)
        if fault is None or doing == "append":
            return fault
        if fault.power_loss:
            raise self._power_loss(path, doing)
        if doing == "fsync" and (inode := disk.find(path)) is not None:
            inode.pending.clear()
        raise Unavailable(f"{path}: cannot {doing}: {fault.reason}")

    def write(self, inode: Inode, path: str, data: bytes, position: int, *, cut_back: bool) -> None:
        """Write bytes at a position of a file, in one step; raises as `step`.

        Args:
            inode: The file.
            path: Its path, for the error.
            data: The bytes.
            position: Offset of the first byte.
            cut_back: Truncate the file there if the step fails.
        """
        fault = self.step(path, "append")
        if fault is not None:
            partly = data[: fault.keep_bytes]
            if partly:
                inode.change(Write(position, partly))
            if fault.power_loss:
                raise self._power_loss(path, "append")
            if cut_back:
                inode.change(Truncate(position))
            raise Unavailable(f"{path}: cannot append: {fault.reason}")
        grown = max(0, position + len(data) - len(inode.visible))
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            raise Unavailable(f"{path}: cannot append: no space left on the device; free space")
        inode.change(Write(position, data))

    def sync(self, changed: Inode | Folder, path: str) -> None:
        """Make the changes of a file or folder durable, in one step; raises as `step`."""
        self.step(path, "fsync")
        self.syncs += 1
        changed.sync()

    def _power_loss(self, path: str, doing: str) -> PowerLoss:
        self.powerless = True
        return PowerLoss(f"{path}: power loss at step {self.steps}: {doing}")

"""Which steps of a file system in memory fail, and how: numbered, or the next of a kind.

Owns: the counted steps and the faults that wait for them. Does not own: what a step does, nor
the files.
"""

from __future__ import annotations

from dataclasses import dataclass

_NO_END_BYTES = 1 << 62


class PowerLoss(BaseException):
    """The power went away at this step. Not an `Exception`: nothing may catch and go on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a step: an error, or the end; a write gets `keep_bytes` done before."""

    power_loss: bool
    keep_bytes: int
    reason: str


class FaultPlan:
    """Steps that change something are numbered from 1; a test says which of them go wrong.

    Attributes:
        steps: How many there were.
        capacity_bytes: The size of the disk; None: no end.
        read_only: Every change is refused.
    """

    def __init__(self) -> None:
        self._faults: dict[int, Fault] = {}
        self._next_faults: dict[str, Fault] = {}
        self.steps = 0
        self.capacity_bytes: int | None = None
        self.read_only = False

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
        """Take back the faults, the capacity and read-only."""
        self._faults.clear()
        self._next_faults.clear()
        self.capacity_bytes = None
        self.read_only = False

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        raise NotImplementedError

    def free_bytes(self, folder: str) -> int:  # noqa: ARG002  # one disk for all folders
        """Return what is left of the capacity."""
        if self.capacity_bytes is None:
            return _NO_END_BYTES
        return max(0, self.capacity_bytes - self.used_bytes())

    def _take_fault(self, kind: str) -> Fault | None:
        """Count a step and return what is to happen at it."""
        self.steps += 1
        return self._faults.pop(self.steps, None) or self._next_faults.pop(kind, None)

"""Whether the supervisors that read streams leave slots for other tasks. Pure.

A supervisor wants a slot for each task that reads, all the time, and once more as many while those
publish that read before. Where that is all there are, batch tasks wait, and nothing in their own
log says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import counted

if TYPE_CHECKING:
    from penstock.indexing.supervisor import Supervisor

_WANT_NOTHING: Final = frozenset({"SUSPENDED", "STOPPING", "IDLE", "COMPLETED"})
_MEND: Final = (
    "give workers more slots (--worker-capacity), suspend a supervisor, or lower taskCount or"
    " replicas"
)


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """What supervisors want of the slots that there are.

    Attributes:
        supervisors: How many want slots.
        reading: Tasks that read, of all of them.
        capacity: Slots of all workers; 0: there is no worker, which is told elsewhere.
    """

    supervisors: int
    reading: int
    capacity: int

    @property
    def shortage(self) -> str:
        """What is short and how to mend it; empty if nothing is.

        Nothing is where the slots are enough for all that supervisors ever want at once, though
        others may then have to wait until a publish is over.
        """
        publishing = 2 * self.reading
        if not self.capacity or (self.reading < self.capacity and publishing <= self.capacity):
            return ""
        who = counted(self.supervisors, "supervisor wants", "supervisors want")
        when = "at all times" if self.reading >= self.capacity else "while their tasks publish"
        return (
            f"{who} {counted(self.reading, 'slot')} for tasks that read, and up to {publishing}"
            f" while those before them publish, of {self.capacity} that there are: {when} batch"
            f" tasks wait. To mend it, {_MEND}"
        )


def tasks_wanted(supervisor: Supervisor) -> int:
    """Return how many tasks of a supervisor read at a time: those of each group."""
    if supervisor.standing.state in _WANT_NOTHING:
        return 0
    io = supervisor.spec.io
    partitions = len(supervisor.standing.latest()[0])
    # Without a stream partition there is no group; before they are known, all may be there.
    groups = min(io.task_count, partitions) if partitions else io.task_count
    return groups * io.replicas


def slot_demand(supervisors: Iterable[Supervisor], capacity: int) -> SlotDemand:
    """Return what supervisors want, of so many slots."""
    wanted = [count for one in supervisors if (count := tasks_wanted(one))]
    return SlotDemand(len(wanted), sum(wanted), capacity)

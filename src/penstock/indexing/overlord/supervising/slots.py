"""Checks whether streaming supervisors leave slots for other tasks. Pure.

A supervisor always needs a slot for each reading task, and as many again while the tasks before
them publish. If these are all slots, batch tasks wait, and their own logs do not show why.
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
    """Demand of supervisors for slots.

    Attributes:
        supervisors: Number of supervisors that need slots.
        reading: Number of their reading tasks.
        capacity: Number of slots of all workers; 0 if there is no worker, which is reported
            elsewhere.
    """

    supervisors: int
    reading: int
    capacity: int

    @property
    def shortage(self) -> str:
        """Description of the shortage and its remedy; empty if there is none.

        There is none if the slots suffice for the maximum demand of the supervisors, even if other
        tasks may then have to wait until a publish is over.
        """
        publishing = 2 * self.reading
        if not self.capacity or (self.reading < self.capacity and publishing <= self.capacity):
            return ""
        who = counted(self.supervisors, "supervisor needs", "supervisors need")
        when = "at all times" if self.reading >= self.capacity else "while their tasks publish"
        return (
            f"{who} {counted(self.reading, 'slot')} for reading tasks, and up to {publishing}"
            f" while the tasks before them publish, of {self.capacity} available: {when} batch"
            f" tasks wait. To fix it, {_MEND}"
        )


def tasks_wanted(supervisor: Supervisor) -> int:
    """Return how many tasks of a supervisor read at a time, over all its groups."""
    if supervisor.standing.state in _WANT_NOTHING:
        return 0
    io = supervisor.spec.io
    partitions = len(supervisor.standing.latest()[0])
    # Without a stream partition there is no group; before they are known, assume all groups.
    groups = min(io.task_count, partitions) if partitions else io.task_count
    return groups * io.replicas


def slot_demand(supervisors: Iterable[Supervisor], capacity: int) -> SlotDemand:
    """Return the demand of supervisors for slots, given the number of slots."""
    wanted = [count for one in supervisors if (count := tasks_wanted(one))]
    return SlotDemand(len(wanted), sum(wanted), capacity)

"""The overlord: assigns tasks to workers, grants their locks and performs their actions."""

from penstock.indexing.overlord.overlord import (
    Overlord,
    OverlordOptions,
    OverlordPorts,
    TaskView,
)

__all__ = ["Overlord", "OverlordOptions", "OverlordPorts", "TaskView"]

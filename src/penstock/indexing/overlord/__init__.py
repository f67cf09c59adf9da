"""The overlord: which tasks run where, who may lock what, and what tasks may ask."""

from penstock.indexing.overlord.overlord import (
    Overlord,
    OverlordOptions,
    OverlordPorts,
    TaskView,
)

__all__ = ["Overlord", "OverlordOptions", "OverlordPorts", "TaskView"]

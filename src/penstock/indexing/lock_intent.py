"""An interval that a task must lock before it may start, according to its spec.

The lockbox chooses the type of lock from the task's context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.intervals import Interval


@dataclass(frozen=True, slots=True)
class LockIntent:
    """One interval that a task must lock before it may start.

    Attributes:
        interval: The interval, already aligned to the segment granularity.
        appends: Whether the task only adds to existing segments, and replaces none.
    """

    interval: Interval
    appends: bool = False

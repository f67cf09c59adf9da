"""Locks that a task requires before it may start, in terms of its spec.

The lockbox chooses the lock type, by the task's context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.intervals import Interval


@dataclass(frozen=True, slots=True)
class LockWish:
    """One interval that a task must lock before it may start.

    Attributes:
        interval: The interval, already aligned to the segment granularity.
        appends: Whether the task only adds to existing segments, and replaces none.
    """

    interval: Interval
    appends: bool = False

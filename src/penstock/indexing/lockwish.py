"""What a task wants to lock before it may start, in words that a spec can say.

Which lock type that becomes is the lockbox's to choose, from the task's context.
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
        interval: What is to be locked, aligned to the segment granularity already.
        appends: Whether the task adds to what is there, and replaces nothing.
    """

    interval: Interval
    appends: bool = False

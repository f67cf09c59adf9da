"""What replacing tasks are told of what others append, and how often times are compared."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from penstock.core.intervals import Interval
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def left_for(store: MetadataStore, task_id: str, datasource: str = "d") -> set[str]:
    """Return the used segments that are not in a task's input, as its commit lists them again."""
    read = store.segments.used(datasource, replaced_by=task_id)
    return {row.id for row in store.segments.used(datasource)} - {row.id for row in read}


def comparisons_in(work: Callable[[], object]) -> int:
    """Return how often intervals are asked something, which says how work grows with them."""
    file, calls = Interval.overlaps.__code__.co_filename, 0

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == file

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls

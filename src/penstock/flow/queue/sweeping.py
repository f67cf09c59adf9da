"""Sweeps: remove expired or dropped rows of swap files without loading them.

Owns finding them by columns, and the order of steps: first the swap store records the removal, then
the rows leave the queue. Does not own the choice of rows.

Invariant: a cursor that is being swept is busy: nothing is taken from it until the swap store has
recorded or refused the sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.flow.queue.queue_state import Contents
from penstock.flow.queue.store import Store
from penstock.flow.queue.swap_store import SwapFile
from penstock.flow.queue.swapped.run import Leaving, Run
from penstock.flow.swap.columns import Page
from penstock.storage.content.claims import ResourceClaim

Mask = npt.NDArray[np.bool_]
Select = Callable[[Page], Mask]


@dataclass(frozen=True, slots=True)
class SweptRows:
    """FlowFiles that were removed from a swap file without being loaded; already in the journal.

    Attributes:
        file: Their swap file.
        count: Number of FlowFiles.
        size_bytes: Their content bytes.
        claims: Number of them that referred to each resource claim.
    """

    file: SwapFile
    count: int
    size_bytes: int
    claims: Mapping[ResourceClaim, int]


@dataclass(slots=True)
class _Found:
    rows: npt.NDArray[np.int64]
    size_bytes: int
    claims: Counter[ResourceClaim]
    min_entry_ms: int | None


def sweep(contents: Contents, store: Store, run: Run, select: Select | None) -> SweptRows | None:
    """Remove rows of one cursor. The mutex is not held.

    Args:
        contents: State of the queue.
        store: Store of the cursor.
        run: The cursor.
        select: Returns a mask of rows of a page to remove; None: all remaining rows, without
            reading them.

    Returns:
        Removed rows; None if there were none.

    Raises:
        Unavailable: The swap store cannot record it now; nothing was removed.
        NotFound, CorruptData: The file cannot be read; nothing was removed.
    """
    with contents.mutex:
        while run.is_busy or run.is_read_ahead:
            contents.mutex.wait()
        if not run.left or run not in store.runs:
            return None
        left = run.remaining()
        left_bytes = run.left_bytes
        run.is_busy = True
    leaving: Leaving | None = None
    try:
        if select is None:
            found = _Found(left.nonzero()[0], left_bytes, Counter(), None)
        else:
            found = _find(contents, run, left, select)
        count = len(found.rows)
        going = run.leaving(
            found.rows, found.size_bytes
        )  # no other thread changes it while it is busy
        swept = SweptRows(run.file, count, found.size_bytes, found.claims) if count else None
        if select is None:
            contents.home.discard(run.file)
        elif count:
            contents.home.drop_rows(run.file, found.rows.tolist(), found.claims)
        leaving = going
    finally:
        with contents.mutex:
            run.is_busy = False
            contents.mutex.notify_all()  # they wait for the mutex
            if leaving is not None:
                try:
                    run.leave(leaving)
                except BaseException:
                    run.leave(leaving)  # the swap store has recorded it, which cannot be undone
                    raise
                run.min_entry_ms = found.min_entry_ms or run.min_entry_ms
            store.runs.changed(run)
    return swept


def _find(contents: Contents, run: Run, left: Mask, select: Select) -> _Found:
    rows: list[npt.NDArray[np.int64]] = []
    claims: Counter[ResourceClaim] = Counter()
    size_bytes = 0
    min_entry_ms: int | None = None
    reader = contents.home.open(run.file)
    try:
        for page in reader.pages():
            here = left[page.start : page.start + page.count]
            chosen = select(page) & here
            inside = np.flatnonzero(chosen)
            sizes, entries = page.integers("size", "entry_ms")
            kept = entries[here & ~chosen]
            if len(kept):
                least = int(kept.min())
                min_entry_ms = least if min_entry_ms is None else min(min_entry_ms, least)
            if len(inside):
                rows.append(inside + page.start)
                size_bytes += int(sizes[inside].sum())
                claims.update(dict(page.resources(inside)))
    finally:
        reader.close()
    together = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    return _Found(together, size_bytes, claims, min_entry_ms)

"""Letting rows of swap files go without loading them: expired ones, and dropped ones.

Owns finding them by columns, and the order of things: recorded by the home first, then gone from
the queue. Does not own what is expired or dropped.

Invariant: a run that is swept is busy: nobody takes from it until the home has recorded the sweep
or refused it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.flow.queue.contents import Contents
from penstock.flow.queue.home import SwapFile
from penstock.flow.queue.store import Store
from penstock.flow.queue.swapped.run import Leaving, Run
from penstock.flow.swap.columnar import Page
from penstock.storage.content.claims import ResourceClaim

Mask = npt.NDArray[np.bool_]
Select = Callable[[Page], Mask]


@dataclass(frozen=True, slots=True)
class SweptRows:
    """FlowFiles that went from a swap file without being loaded; the journal knows already.

    Attributes:
        file: Where they were.
        count: How many.
        size_bytes: Of their content.
        claims: How many of them referred to each resource claim.
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
    """Let rows of one run go. The mutex is not held.

    Args:
        contents: The queue's.
        store: Where the run is.
        run: Which.
        select: Says which rows of a page go; None: all that are left, without reading them.

    Returns:
        What went, or None if nothing did.

    Raises:
        Unavailable: The home cannot record it now; nothing went.
        NotFound, CorruptData: The file cannot be read; nothing went.
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
        going = run.leaving(found.rows, found.size_bytes)  # nobody else changes it while it is busy
        swept = SweptRows(run.file, count, found.size_bytes, found.claims) if count else None
        if select is None:
            contents.home.discard(run.file)
        elif count:
            contents.home.drop_rows(run.file, found.rows.tolist(), found.claims)
        leaving = going
    finally:
        with contents.mutex:
            run.is_busy = False
            contents.mutex.notify_all()  # they wait for the mutex, which is held until the end
            if leaving is not None:
                try:
                    run.leave(leaving)
                except BaseException:
                    run.leave(leaving)  # the home has recorded it, and that cannot be undone
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

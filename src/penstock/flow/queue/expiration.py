"""Expiration of a queue's FlowFiles, in memory and in swap files.

`Expiration` owns the rule (the entry date is older than the connection allows) and when swap
files are checked. `sweep` removes rows from a swap file by their columns, without loading them,
for expired and for dropped FlowFiles. Does not own the removal of expired FlowFiles that were
in memory: the caller of a poll records it in the journal.

Invariants: a sweep is recorded by the `SwapStore` before the rows leave the queue. While a swap
file is swept, nothing is taken from it until the store has recorded or refused the sweep.
`sweep` is called without the queue's mutex.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.ordered_store import OrderedStore
from penstock.flow.queue.queue_state import QueueState
from penstock.flow.queue.swap_cursors import RowRemoval, SwapCursor
from penstock.flow.queue.swap_store import SwapFileInfo
from penstock.flow.swap.swap_pages import SwapPage
from penstock.storage.content.claims import ResourceClaim

Mask = npt.NDArray[np.bool_]
Select = Callable[[SwapPage], Mask]


@dataclass(frozen=True, slots=True)
class SweptRows:
    """FlowFiles that were removed from a swap file without being loaded; already in the journal.

    Attributes:
        file: Their swap file.
        count: Number of FlowFiles.
        size_bytes: Their content bytes.
        claims: Number of them that referred to each resource claim.
    """

    file: SwapFileInfo
    count: int
    size_bytes: int
    claims: Mapping[ResourceClaim, int]


@dataclass(slots=True)
class _Found:
    rows: npt.NDArray[np.int64]
    size_bytes: int
    claims: Counter[ResourceClaim]
    min_entry_ms: int | None


def sweep(
    queue_state: QueueState, store: OrderedStore, cursor: SwapCursor, select: Select | None
) -> SweptRows | None:
    """Remove rows of one cursor. The mutex is not held.

    Args:
        queue_state: State of the queue.
        store: Store of the cursor.
        cursor: The cursor.
        select: Returns a mask of rows of a page to remove; None: all remaining rows, without
            reading them.

    Returns:
        Removed rows; None if there were none.

    Raises:
        Unavailable: The swap store cannot record it now; nothing was removed.
        NotFound, CorruptData: The file cannot be read; nothing was removed.
    """
    with queue_state.mutex:
        while cursor.is_busy or cursor.is_read_ahead:
            queue_state.mutex.wait()
        if not cursor.left or cursor not in store.cursors:
            return None
        left = cursor.remaining()
        left_bytes = cursor.left_bytes
        cursor.is_busy = True
    removal: RowRemoval | None = None
    try:
        if select is None:
            found = _Found(left.nonzero()[0], left_bytes, Counter(), None)
        else:
            found = _find(queue_state, cursor, left, select)
        count = len(found.rows)
        going = cursor.removal(
            found.rows, found.size_bytes
        )  # no other thread changes it while it is busy
        swept = SweptRows(cursor.file, count, found.size_bytes, found.claims) if count else None
        if select is None:
            queue_state.swap_store.discard(cursor.file)
        elif count:
            queue_state.swap_store.drop_rows(cursor.file, found.rows.tolist(), found.claims)
        removal = going
    finally:
        with queue_state.mutex:
            cursor.is_busy = False
            queue_state.mutex.notify_all()  # they wait for the mutex
            if removal is not None:
                try:
                    cursor.leave(removal)
                except BaseException:
                    cursor.leave(removal)  # the swap store has recorded it, which cannot be undone
                    raise
                cursor.min_entry_ms = found.min_entry_ms or cursor.min_entry_ms
            store.cursors.changed(cursor)
    return swept


def _find(queue_state: QueueState, cursor: SwapCursor, left: Mask, select: Select) -> _Found:
    rows: list[npt.NDArray[np.int64]] = []
    claims: Counter[ResourceClaim] = Counter()
    size_bytes = 0
    min_entry_ms: int | None = None
    reader = queue_state.swap_store.open(cursor.file)
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


# Rows expire continuously in a slow queue; each search reads a column of a whole file.
SWEEP_INTERVAL_MS_MAX: Final = 30_000

_logger = logging.getLogger(__name__)


class Expiration:
    """Finds expired FlowFiles: those older than the connection allows, by their entry date.

    Args:
        queue_state: State of the queue.
    """

    def __init__(self, queue_state: QueueState) -> None:
        self._queue_state = queue_state
        self._next_sweep_ms = 0

    def split(self, flowfiles: list[FlowFile]) -> tuple[list[FlowFile], list[FlowFile]]:
        """Return the FlowFiles that are not expired, and those that are."""
        oldest_ms = self._oldest_ms()
        if oldest_ms is None:
            return flowfiles, []
        expired = [one for one in flowfiles if one.entry_ms < oldest_ms]
        if expired:
            flowfiles = [one for one in flowfiles if one.entry_ms >= oldest_ms]
        return flowfiles, expired

    def expire_in_memory(self, expired: list[FlowFile]) -> None:
        """Remove expired FlowFiles from memory. Acquires the mutex itself.

        Args:
            expired: Receives them, and keeps them even if this raises.
        """
        oldest_ms = self._oldest_ms()
        if oldest_ms is None:
            return
        queue_state = self._queue_state
        with queue_state.mutex:
            queue_state.sort_returned()
            ids = {
                one.id
                for store in queue_state.stores
                for one in store.memory.flowfiles()
                if one.entry_ms < oldest_ms
            }
            for store in queue_state.stores:
                store.memory.remove(ids, expired)

    def expire_rows(self, *, at_once: bool = False) -> list[SweptRows]:
        """Remove expired rows of swap files. Acquires the mutex itself.

        Args:
            at_once: Even if swap files were searched a short while ago.
        """
        queue_state = self._queue_state
        oldest_ms = self._oldest_ms()
        if oldest_ms is None:
            return []
        now_ms = queue_state.clock.now_ms()
        with queue_state.mutex:
            if now_ms < self._next_sweep_ms and not at_once:
                return []
            cursors = [
                (store, cursor)
                for store in queue_state.stores
                for cursor in store.cursors
                if cursor.min_entry_ms < oldest_ms
            ]
            if cursors:
                pause_ms = min(queue_state.options.expiration_ms // 10, SWEEP_INTERVAL_MS_MAX)
                self._next_sweep_ms = now_ms + pause_ms
        swept = [self._sweep(store, cursor, oldest_ms) for store, cursor in cursors]
        return [one for one in swept if one is not None]

    def _sweep(self, store: OrderedStore, cursor: SwapCursor, oldest_ms: int) -> SweptRows | None:
        try:
            return sweep(
                self._queue_state,
                store,
                cursor,
                lambda page: page.integers("entry_ms")[0] < oldest_ms,
            )
        except (NotFound, CorruptData):
            return None  # the poll that finds it counts the loss
        except PenstockError as error:
            _logger.warning(
                "queue %s: expired FlowFiles of swap file %s could not be removed now: %s",
                self._queue_state.queue_id, cursor.file.name, error,
            )  # fmt: skip
            return None

    def _oldest_ms(self) -> int | None:
        expiration_ms = self._queue_state.options.expiration_ms
        return self._queue_state.clock.now_ms() - expiration_ms if expiration_ms else None

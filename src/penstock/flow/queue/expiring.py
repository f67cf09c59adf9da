"""Expiration: found when FlowFiles are polled, and in swap files by their columns.

Owns the rule for expiration, and when swap files are searched. Does not own the removal of expired
FlowFiles from memory: the caller of a poll removes them from the journal.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.queue_state import Contents
from penstock.flow.queue.sweeping import SweptRows, sweep

if TYPE_CHECKING:
    from penstock.flow.queue.store import Store
    from penstock.flow.queue.swapped.run import Run

# Rows expire continuously in a slow queue; each search reads a column of a whole file.
SWEEP_INTERVAL_MS_MAX: Final = 30_000

_logger = logging.getLogger(__name__)


class Expiring:
    """Finds expired FlowFiles: those older than the connection allows, by their entry date.

    Args:
        contents: State of the queue.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
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
        contents = self._contents
        with contents.mutex:
            contents.sort_returned()
            ids = {
                one.id
                for store in contents.stores
                for one in store.memory.flowfiles()
                if one.entry_ms < oldest_ms
            }
            for store in contents.stores:
                store.memory.remove(ids, expired)

    def expire_rows(self, *, at_once: bool = False) -> list[SweptRows]:
        """Remove expired rows of swap files. Acquires the mutex itself.

        Args:
            at_once: Even if swap files were searched a short while ago.
        """
        contents = self._contents
        oldest_ms = self._oldest_ms()
        if oldest_ms is None:
            return []
        now_ms = contents.clock.now_ms()
        with contents.mutex:
            if now_ms < self._next_sweep_ms and not at_once:
                return []
            runs = [
                (store, run)
                for store in contents.stores
                for run in store.runs
                if run.min_entry_ms < oldest_ms
            ]
            if runs:
                pause_ms = min(contents.options.expiration_ms // 10, SWEEP_INTERVAL_MS_MAX)
                self._next_sweep_ms = now_ms + pause_ms
        swept = [self._sweep(store, run, oldest_ms) for store, run in runs]
        return [one for one in swept if one is not None]

    def _sweep(self, store: Store, run: Run, oldest_ms: int) -> SweptRows | None:
        try:
            return sweep(
                self._contents,
                store,
                run,
                lambda page: page.integers("entry_ms")[0] < oldest_ms,
            )
        except (NotFound, CorruptData):
            return None  # the poll that finds it counts the loss
        except PenstockError as error:
            _logger.warning(
                "queue %s: expired FlowFiles of swap file %s could not be removed now: %s",
                self._contents.queue_id, run.file.name, error,
            )  # fmt: skip
            return None

    def _oldest_ms(self) -> int | None:
        expiration_ms = self._contents.options.expiration_ms
        return self._contents.clock.now_ms() - expiration_ms if expiration_ms else None

"""FlowFiles that are too old: found when they are met, and in swap files by their columns.

Owns what expired means and when swap files are looked at. Does not own what becomes of expired
ones: the caller of a poll has the journal remove those that were in memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.contents import Contents
from penstock.flow.queue.sweeping import SweptRows, sweep

if TYPE_CHECKING:
    from penstock.flow.queue.store import Store
    from penstock.flow.queue.swapped.run import Run

# Rows expire all the time in a queue that is behind; each look reads a column of a whole file.
SWEEP_INTERVAL_MS_MAX: Final = 30_000

_logger = logging.getLogger(__name__)


class Expiring:
    """Finds what is expired: its entry date is longer ago than the connection allows.

    Args:
        contents: The queue's.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._next_sweep_ms = 0

    def split(self, flowfiles: list[FlowFile]) -> tuple[list[FlowFile], list[FlowFile]]:
        """Return those that are not expired, and those that are."""
        oldest_ms = self._oldest_ms()
        if oldest_ms is None:
            return flowfiles, []
        expired = [one for one in flowfiles if one.entry_ms < oldest_ms]
        if expired:
            flowfiles = [one for one in flowfiles if one.entry_ms >= oldest_ms]
        return flowfiles, expired

    def expire_in_memory(self, expired: list[FlowFile]) -> None:
        """Take what is expired out of memory. Takes the mutex itself.

        Args:
            expired: Gets it, and holds it whatever is raised.
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
        """Let expired rows of swap files go. Takes the mutex itself.

        Args:
            at_once: Even if swap files were looked at a short while ago.
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
            return None  # the poll that meets it counts what is lost
        except PenstockError as error:
            _logger.warning(
                "queue %s: expired FlowFiles of swap file %s stay for now: %s",
                self._contents.queue_id, run.file.name, error,
            )  # fmt: skip
            return None

    def _oldest_ms(self) -> int | None:
        expiration_ms = self._contents.options.expiration_ms
        return self._contents.clock.now_ms() - expiration_ms if expiration_ms else None

"""Keeps a channel's state on disk: a journal of what happened, compacted now and then.

Owns when records go to the journal: at the end of the loop's turn when they say that a message must
not come back too early, else within a tenth of a second, so that thousands of finished messages
make one record. Does not own what the records say (`state`) nor the files (`storage.journal`).

Invariants: event loop only, but for compaction, which runs beside it; records reach the journal in
order; when the disk is full they wait in memory, merged, and go when there is room. Losing the last
ones costs repeats, never messages.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.broker.channel.state import ChannelState
    from penstock.storage.journal import Journal

_logger = logging.getLogger(__name__)

_LAZY_S: Final = 0.1
_RETRY_S: Final = 1.0
_COMPACT_BYTES: Final = 1 << 20
_GROWTH: Final = 4


class ChannelKeeper:
    """Writes the journal of one channel.

    Args:
        journal: The channel's journal, replayed already.
        state: The channel's state.
    """

    def __init__(self, journal: Journal, state: ChannelState) -> None:
        self._journal = journal
        self._state = state
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self._compacting: asyncio.Task[bool] | None = None
        self._compact_above = _COMPACT_BYTES
        self._failing = False
        self._closed = False

    def note(self) -> None:
        """Take note that the state may have changed."""
        urgent = self._state.recorder.urgent
        if self._timer is not None:
            if not urgent or self._urgent:
                return
            self._timer.cancel()
        elif not (urgent or self._state.recorder.changed):
            return
        self._urgent = urgent
        self._set_timer(0.0 if urgent else _LAZY_S)

    def flush(self) -> bool:
        """Write the records that wait; False when the disk would not take them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        if self._closed:
            return False  # its files may be gone
        if self._compacting is not None:
            return False  # the new journal begins with a snapshot; what came later goes behind it
        self._waiting += self._state.recorder.take()
        if not self._waiting:
            return True
        try:
            self._journal.append(self._waiting)
        except PenstockError as error:
            if not self._failing:
                _logger.warning("a channel's journal cannot be written, tried again: %s", error)
            self._failing = True
            self._set_timer(_RETRY_S)
            return False
        self._failing = False
        self._waiting = []
        if self._journal.size_bytes > self._compact_above:
            self._begin_compaction()
        return True

    async def keep(self, *, durable: bool = False) -> None:
        """Return when what happened so far survives the death of the broker.

        Args:
            durable: When it survives a power loss, too.

        Raises:
            Unavailable: The disk would not take it now; it is tried again.
        """
        await self._compacted()
        if self._closed:
            raise Unavailable("the channel was deleted meanwhile, or the broker stops: ask again")
        # Also before a new beginning: where that fails, the old journal must tell all.
        if not self.flush():
            raise Unavailable("a channel's journal cannot be written now: ask again")
        if durable:
            # A new beginning is synced before it counts, and nothing is appended meanwhile.
            beginning = self._compacting or self._begin_compaction()
            await asyncio.wait([beginning])
            if not beginning.result():
                raise Unavailable("a channel's journal cannot be synced now: ask again")

    async def _compacted(self) -> None:
        while self._compacting is not None:
            await asyncio.wait([self._compacting])

    async def close(self) -> None:
        """Write what waits and let go of the journal."""
        await self._compacted()
        self.flush()
        await self._compacted()  # which the flush may have begun
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.to_thread(self._journal.close)

    def _begin_compaction(self) -> asyncio.Task[bool]:
        snapshot = self._state.snapshot()
        self._compacting = asyncio.get_running_loop().create_task(self._compact(snapshot))
        return self._compacting

    async def _compact(self, snapshot: bytes) -> bool:
        """Let the journal begin with a snapshot; False when the disk would not take it."""
        done = False
        try:
            await asyncio.to_thread(self._journal.compact, snapshot)
            self._compact_above = max(_COMPACT_BYTES, _GROWTH * len(snapshot))
            done = True
        except PenstockError as error:
            # The old journal is still good, and grows on.
            _logger.warning("a channel's journal cannot be compacted: %s", error)
            self._compact_above = self._journal.size_bytes + _COMPACT_BYTES
        finally:
            self._compacting = None
        self.flush()
        return done

    def _set_timer(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.flush()

"""Keeps a channel's state on disk: a journal of what happened, compacted now and then.

Owns when records go to the journal: at the end of the loop's turn when they say that a message must
not come back too early, else within a tenth of a second, so that thousands of finished messages
make one record; and when the journals of all channels are fsynced (`JournalSyncs`). Does not own
what the records say (`state.journalled`) nor the files (`storage.journal`).

Invariants: event loop only, but for fsyncs and compaction, which run beside it, one of them for a
journal at a time; records reach the journal in order; when the disk is full they wait in memory,
merged, and go when there is room. Losing the last ones costs repeats, never messages. A power loss
takes what is younger than the sync interval and a round of fsyncs.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.channel.state.journalled import snapshot
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.looptasks import run_on_thread, start_awaited, start_job
from penstock.core.sparselog import SparseLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.channel.state.state import ChannelState
    from penstock.core.clock import Clock
    from penstock.storage.journal import Journal

_logger = logging.getLogger(__name__)

_LAZY_S: Final = 0.1
_RETRY_S: Final = 1.0
_COMPACT_BYTES: Final = 1 << 20
_GROWTH: Final = 4
_SYNC_INTERVAL_MS: Final = 2_000
_SYNCS_AT_ONCE: Final = 2  # the others of the loop's threads are for channels that read


class JournalSyncs:
    """Has journals fsynced in rounds: those that were written to since the one before.

    One for all channels of a broker, so that their fsyncs take few threads however many they are.

    Args:
        interval_ms: From the first record that a round is for to its beginning.
        clock: Tells how often trouble is logged.

    Attributes:
        trouble: Logs for all channels that their journals cannot be written.
    """

    def __init__(self, interval_ms: int = _SYNC_INTERVAL_MS, clock: Clock | None = None) -> None:
        self.trouble = SparseLog(_logger, clock or SystemClock())
        self._interval_s = interval_ms / 1000
        self._waiting: dict[ChannelKeeper, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None

    def add(self, keeper: ChannelKeeper) -> None:
        """Let a journal be fsynced in the next round."""
        self._waiting[keeper] = None
        self._plan()

    def remove(self, keeper: ChannelKeeper) -> None:
        """Forget a journal that is closed."""
        self._waiting.pop(keeper, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._waiting and self._timer is None and self._round is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        try:
            self._round = start_job("journal syncs", self._sync_all())
        except Exception:
            # The top of a callback: the round is planned again.
            _logger.exception("a round of fsyncs of the channels' journals cannot begin")
            self._plan()

    async def _sync_all(self) -> None:
        keepers: Iterator[ChannelKeeper] = iter(())
        try:
            keepers, self._waiting = iter(tuple(self._waiting)), {}
            await asyncio.gather(*(self._sync_some(keepers) for _ in range(_SYNCS_AT_ONCE)))
        except Exception:
            # The top of a task: the next round is for those that had no turn, too.
            _logger.exception("a round of fsyncs of the channels' journals failed")
        finally:
            self._round = None
            self._waiting.update(dict.fromkeys(keepers))
            self._plan()

    async def _sync_some(self, keepers: Iterator[ChannelKeeper]) -> None:
        for keeper in keepers:
            try:
                await keeper.sync()
            except Exception:
                # The top of a task: a bug in one journal must not keep the others from the disk.
                _logger.exception("a channel's journal cannot be synced")
                self._waiting[keeper] = None  # the next round tries again


class ChannelKeeper:
    """Writes the journal of one channel.

    Args:
        journal: The channel's journal, replayed already.
        state: The channel's state.
        syncs: Has the journal fsynced.
    """

    def __init__(self, journal: Journal, state: ChannelState, syncs: JournalSyncs) -> None:
        self._journal = journal
        self._state = state
        self._syncs = syncs
        self._timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self._beside: asyncio.Task[bool] | None = None  # the fsync or the compaction that runs
        self._compacting = False
        self._compact_above = _COMPACT_BYTES
        self._sync_wanted = False
        self._failing = False
        self._closed = False

    def note(self) -> None:
        """Take note that the state may have changed."""
        urgent = self._state.recorder.urgent
        if self._timer is not None:
            if not urgent or self._urgent:
                return
        elif not (urgent or self._state.recorder.changed):
            return
        self._set_timer(0.0 if urgent else _LAZY_S)
        self._urgent = urgent

    def flush(self) -> bool:
        """Write the records that wait; False when the disk would not take them.

        Any exception but one that ends the program counts as the disk's: the records stay, and are
        written when the disk takes them.
        """
        if self._closed:
            return False  # its files may be gone
        if self._compacting:
            return False  # the new journal begins with a snapshot; what came later goes behind it
        try:
            records = self._state.recorder.pending()
            if records:
                self._want_sync()  # before there is something to sync: nothing may fail behind it
                self._journal.append([records])
        except Exception as error:  # noqa: BLE001 - as documented
            self._log_failure("written", error)
            # However urgent it is: what comes meanwhile is merged with what waits.
            self._set_timer(_RETRY_S)
            self._urgent = True
            return False
        if records:
            self._failing = False
            self._state.recorder.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent = False
        if self._beside is None and self._journal.size_bytes > self._compact_above:
            self._begin_compaction()
        return True

    async def keep(self, *, durable: bool = False) -> None:
        """Return when what happened so far survives the death of the broker.

        Args:
            durable: When it survives a power loss, too, with what an earlier broker wrote of it.

        Raises:
            Unavailable: The disk would not take it now; it is tried again.
        """
        while self._beside is not None and (durable or self._compacting):
            await asyncio.wait([self._beside])
        if self._closed:
            raise Unavailable("the channel was deleted meanwhile, or the broker stops: ask again")
        if not self.flush():
            raise Unavailable("a channel's journal cannot be written now: ask again")
        if durable and self._journal.unsynced:
            # The flush may have begun a compaction, which is as good.
            beside = self._beside or self._begin_sync()
            await asyncio.wait([beside])
            if not beside.result():
                raise Unavailable("a channel's journal cannot be synced now: ask again")

    async def sync(self) -> bool:
        """Make durable what was written; False when that failed."""
        await self._at_rest()
        if self._closed or not self._journal.unsynced:
            self._sync_wanted = False
            return True
        syncing = self._begin_sync()
        await asyncio.wait([syncing])
        return syncing.result()

    async def close(self) -> None:
        """Write what waits, durably where the disk lets it, and let go of the journal."""
        try:
            await self._at_rest()
            self.flush()
            await self._at_rest()  # from what the flush may have begun
            if self._sync_wanted:
                await self.sync()
                await self._at_rest()
        finally:
            self._closed = True
            self._syncs.remove(self)
            if self._timer is not None:
                self._timer.cancel()
            self._journal.close()

    # -- beside the loop

    async def _at_rest(self) -> None:
        while self._beside is not None:
            await asyncio.wait([self._beside])

    def _want_sync(self) -> None:
        if not self._sync_wanted:
            self._syncs.add(self)
            self._sync_wanted = True

    def _begin_sync(self) -> asyncio.Task[bool]:
        self._beside = start_awaited(self._sync())
        return self._beside

    async def _sync(self) -> bool:
        """Fsync what was appended before it begins; appends go on meanwhile.

        Any exception but one that ends the program counts as the disk's, and is tried again.
        """
        self._sync_wanted = False
        try:
            await run_on_thread(self._journal.begin_sync())
            # A hundred thousand channels that rest must take no file descriptors.
            self._journal.park()
        except Exception as error:  # noqa: BLE001 - as documented
            self._log_failure("synced", error)
            self._want_sync()
            return False
        finally:
            self._beside = None
        if self._journal.size_bytes > self._compact_above:
            self.flush()
        return True

    def _begin_compaction(self) -> None:
        """Begin it when nothing waits: where it fails, the old journal must tell all.

        What was flushed is written, so a compaction that cannot begin is no failure of the flush.
        """
        if not self._state.is_whole:
            return  # half of a change would become the journal's beginning
        try:
            base = snapshot(self._state)
            self._beside = start_job("journal compaction", self._compact(base))
        except Exception as error:  # noqa: BLE001 - the journal grows on, as after a failure
            self._compaction_failed(error)
        else:
            self._compacting = True  # the task begins in a later turn of the loop

    async def _compact(self, base: bytes) -> bool:
        """Let the journal begin with a snapshot, durably; False when the disk would not take it."""
        done = False
        try:
            await run_on_thread(partial(self._journal.compact, base))
            self._compact_above = max(_COMPACT_BYTES, _GROWTH * len(base))
            done = True
        except Exception as error:  # noqa: BLE001 - the top of a task
            self._compaction_failed(error)
        finally:
            self._beside, self._compacting = None, False
        self.flush()
        return done

    def _compaction_failed(self, error: Exception) -> None:
        """Let the journal grow on: the old one is still good."""
        self._compact_above = self._journal.size_bytes + _COMPACT_BYTES
        self._syncs.trouble.warning("a channel's journal cannot be compacted: %s", _reason(error))

    def _log_failure(self, what: str, error: Exception) -> None:
        if not self._failing:
            self._syncs.trouble.warning(
                "a channel's journal cannot be %s, tried again: %s", what, _reason(error)
            )
        self._failing = True

    def _set_timer(self, delay_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _on_time(self) -> None:
        self._timer = None
        self.flush()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else repr(error)

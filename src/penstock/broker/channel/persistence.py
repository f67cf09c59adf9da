"""Persistence of a channel's state: the journal, its snapshots and the restore after a restart.

`ChannelJournal` owns when records are written. Records that prevent an early redelivery are
written at the end of the current event-loop iteration; all others within 0.1 s, so that
thousands of finished messages become one record. `JournalSyncs` owns when the journals of all
channels are fsynced. `snapshot` and `restore` convert between the channel state and the
journal. The record encoding is in `journal_records`, the files are in `storage.journal`.

Invariants: used on the event loop only, except for fsync and compaction, which run on other
threads, one at a time for each journal. Records reach the journal in order. While the disk is
full, records wait in memory, merged. A replay restores the state of the last record, except
that messages that were in flight are queued again and due at once. Losing the newest records
causes redelivery and never message loss; a power failure loses at most the records of one sync
interval and one round of fsyncs.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.channel_state import ChannelState
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.loop_tasks import run_on_thread, start_awaited, start_job
from penstock.core.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.journal import Journal


def snapshot(state: ChannelState) -> bytes:
    """Return the whole state; the recorder's pending changes are included and cleared."""
    state.recorder.clear()
    parts = []
    for partition, progress in enumerate(state.progress):
        parts.append(journal_records.seek(partition, progress.done.floor))
        parts.append(journal_records.next_(partition, progress.next))
    held = state.in_flight.all()
    for number, attempts in zip(held.ids.tolist(), held.attempts.tolist(), strict=True):
        if attempts > 1:
            parts.append(journal_records.retry(number, 0, attempts))
    parts += [journal_records.retry(*entry) for entry in state.retries]
    parts += [
        journal_records.done(partition, start, end)
        for partition, progress in enumerate(state.progress)
        for start, end in progress.done
    ]
    return journal_records.snapshot(parts)


def restore(
    base: bytes, journal: Iterable[bytes], starts: Sequence[int], ends: Sequence[int]
) -> tuple[ChannelState, bool]:
    """Restore the state from a journal, limited to the current contents of the stream partitions.

    After a power loss the queue may be shorter than when the journal was written: state beyond its
    end is dropped, or new messages with these offsets would count as finished. So write a new
    snapshot before anything is appended.

    Args:
        base: The snapshot at the beginning of the journal; empty: none.
        journal: The records after it.
        starts: The first offset of each stream partition.
        ends: The offset after its last message.

    Returns:
        The state, and whether the queue was shorter than recorded in the journal.

    Raises:
        InvalidRequest: The snapshot has a newer format.
        CorruptData: A record is invalid.
    """
    state = ChannelState(starts)
    replayed = _Replay(state)
    journal_records.replay_snapshot(base, replayed)
    for blob in journal:
        journal_records.replay(blob, replayed)
    return state, _limit_to_existing(state, starts, ends)


def _limit_to_existing(state: ChannelState, starts: Sequence[int], ends: Sequence[int]) -> bool:
    """Limit the state to existing messages; delivered and unfinished ones wait, due at once."""
    was_cut = False
    waiting = set(state.retries.ids())
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        progress = state.progress[partition]
        was_cut |= progress.cut(start, end)
        for first, last in progress.done.gaps(progress.next):
            for offset in range(first, last):
                number = message_id.of(partition, offset)
                if number not in waiting:
                    state.retries.put(number, 0, 1)
    gone = []
    for number, _, _ in state.retries:
        partition, offset = message_id.split(number)
        was_cut |= offset >= ends[partition]
        progress = state.progress[partition]
        if offset >= progress.next or offset in progress.done:
            gone.append(number)
    state.retries.remove(gone)
    state.retries.make_due_ready(0)
    return was_cut


class _Replay:
    """Applies records to a state without messages in flight; records nothing."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._progress = state.progress
        self._retries = state.retries

    def on_seek(self, partition: int, offset: int) -> None:
        if partition < len(self._progress):
            self._state.forget(partition, offset)

    def on_next(self, partition: int, offset: int) -> None:
        if partition < len(self._progress):
            progress = self._progress[partition]
            progress.next = max(progress.next, offset)

    def on_retry(self, number: int, due_ms: int, attempts: int) -> None:
        if number >> message_id.OFFSET_BITS < len(self._progress):
            self._retries.put(number, due_ms, attempts)

    def on_done(self, partition: int, start: int, end: int) -> None:
        if partition < len(self._progress):
            self._progress[partition].done.add(start, end)
            first = message_id.of(partition, start)
            self._retries.remove_range(first, first + end - start)


_logger = logging.getLogger(__name__)

_LAZY_S: Final = 0.1
_RETRY_S: Final = 1.0
_COMPACT_BYTES: Final = 1 << 20
_GROWTH: Final = 4
_SYNC_INTERVAL_MS: Final = 2_000
_SYNCS_AT_ONCE: Final = 2  # the other threads of the loop are for channels that read


class JournalSyncs:
    """Fsyncs journals in rounds: those that were written since the previous round.

    One instance serves all channels of a broker, so that their fsyncs use few threads.

    Args:
        interval_ms: Time from the first record of a round to the beginning of the round.
        clock: For the rate limit of log lines.

    Attributes:
        failure_log: Logs failed writes of all channels' journals.
    """

    def __init__(self, interval_ms: int = _SYNC_INTERVAL_MS, clock: Clock | None = None) -> None:
        self.failure_log = RateLimitedLog(_logger, clock or SystemClock())
        self._interval_s = interval_ms / 1000
        # False while a round syncs the journal. To change the value of a key needs no memory.
        self._waiting: dict[ChannelJournal, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None

    def add(self, journal: ChannelJournal) -> None:
        """Fsync a journal in the next round."""
        self._waiting[journal] = True
        self._plan()

    def remove(self, journal: ChannelJournal) -> None:
        """Remove a closed journal."""
        self._waiting.pop(journal, None)
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
            self._round.add_done_callback(self._round_ended)
        except Exception:
            # The outermost handler of a callback: the round is planned again.
            _logger.exception("cannot begin a round of fsyncs of the channels' journals")
            self._plan()

    def _round_ended(self, task: asyncio.Task[None]) -> None:
        """Plan the next round if the body did not: it did not begin, or memory ran out."""
        if self._round is task:
            self._round = None
        self._plan()

    async def _sync_all(self) -> None:
        try:
            journals = iter(tuple(self._waiting))
            await asyncio.gather(*(self._sync_some(journals) for _ in range(_SYNCS_AT_ONCE)))
        except Exception:
            # The outermost handler of a task: the next round includes the remaining ones.
            _logger.exception("a round of fsyncs of the channels' journals failed")
        finally:
            self._round = None
            self._plan()

    async def _sync_some(self, journals: Iterator[ChannelJournal]) -> None:
        for journal in journals:
            if journal not in self._waiting:
                continue  # it was closed meanwhile
            self._waiting[journal] = False
            is_done = False
            try:
                await journal.sync()
                is_done = True
            except Exception:
                # The outermost handler of a task: a bug in one journal must not prevent other
                # fsyncs.
                _logger.exception("cannot sync a channel's journal")
            finally:
                # The next round syncs a journal that failed, or was written meanwhile.
                if journal in self._waiting:
                    if not is_done:
                        self._waiting[journal] = True
                    elif not self._waiting[journal]:
                        del self._waiting[journal]


class ChannelJournal:
    """Writes the journal of one channel.

    Args:
        journal: The channel's journal, already replayed.
        state: The channel's state.
        syncs: Schedules the fsyncs of the journal.
    """

    def __init__(self, journal: Journal, state: ChannelState, syncs: JournalSyncs) -> None:
        self._journal = journal
        self._state = state
        self._syncs = syncs
        self._timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self._background: asyncio.Task[bool] | None = None  # the running fsync or compaction
        self._compacting = False
        self._compact_above = _COMPACT_BYTES
        self._sync_wanted = False
        self._failing = False
        self._closed = False

    def note(self) -> None:
        """Handle a possible change of the state."""
        urgent = self._state.recorder.urgent
        if self._timer is not None:
            if not urgent or self._urgent:
                return
        elif not (urgent or self._state.recorder.changed):
            return
        self._set_timer(0.0 if urgent else _LAZY_S)
        self._urgent = urgent

    def flush(self) -> bool:
        """Write pending records; False if the write failed.

        Any exception except one that ends the program counts as a failed write: the records stay
        pending, and the write is retried.
        """
        if self._closed:
            return False  # its files may have been deleted
        if self._running() is not None and self._compacting:
            # The new journal begins with a snapshot, which later records must follow. The timer is
            # for a compaction that ends before its body begins, and so writes no records.
            if self._timer is None:
                self._set_timer(_RETRY_S)
                self._urgent = True
            return False
        try:
            records = self._state.recorder.pending()
            if records:
                self._want_sync()  # before the append, after which nothing may fail
                self._journal.append([records])
        except Exception as error:  # noqa: BLE001 - a failed write is retried
            self._log_failure("written", error)
            # Even if it is urgent: later records are merged with the pending ones.
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
        if self._background is None and self._journal.size_bytes > self._compact_above:
            self._begin_compaction()
        return True

    async def keep(self, *, durable: bool = False) -> None:
        """Wait until the current state survives a kill of the broker.

        Args:
            durable: Wait until the state, including earlier writes, survives a power loss.

        Raises:
            Unavailable: The disk write failed; it will be retried.
        """
        while (running := self._running()) is not None and (durable or self._compacting):
            await asyncio.wait([running])
        if self._closed:
            raise Unavailable("the channel was deleted, or the broker stops: try again")
        if not self.flush():
            raise Unavailable("cannot write a channel's journal now: try again")
        if durable and self._journal.unsynced:
            # The flush may have begun a compaction, which also makes the state durable.
            syncing = self._running() or self._begin_sync()
            await asyncio.wait([syncing])
            if not syncing.result():
                raise Unavailable("cannot sync a channel's journal now: try again")

    async def sync(self) -> bool:
        """Make written records durable; False if that failed."""
        await self._at_rest()
        if self._closed or not self._journal.unsynced:
            self._sync_wanted = False
            return True
        syncing = self._begin_sync()
        await asyncio.wait([syncing])
        return syncing.result()

    async def close(self) -> None:
        """Write pending records, durably if possible, and close the journal."""
        try:
            await self._at_rest()
            self.flush()
            await self._at_rest()  # wait for work that the flush may have begun
            if self._sync_wanted:
                await self.sync()
                await self._at_rest()
        finally:
            self._closed = True
            self._syncs.remove(self)
            if self._timer is not None:
                self._timer.cancel()
            self._journal.close()

    # -- on other threads, and the tasks that wait for them

    async def _at_rest(self) -> None:
        while (running := self._running()) is not None:
            await asyncio.wait([running])

    def _running(self) -> asyncio.Task[bool] | None:
        """Return the running fsync or compaction.

        Forgets a task that ended before its body began, because of an exception or a cancel; the
        body forgets all others. Not by a callback of the task: if the loop cannot schedule one
        callback of a task, it drops those after it, with which other code waits for the task.
        """
        if self._background is not None and self._background.done():
            self._background, self._compacting = None, False
        return self._background

    def _want_sync(self) -> None:
        if not self._sync_wanted:
            self._syncs.add(self)
            self._sync_wanted = True

    def _begin_sync(self) -> asyncio.Task[bool]:
        self._background = start_awaited(self._sync())
        return self._background

    async def _sync(self) -> bool:
        """Fsync records that were appended before; appends continue meanwhile.

        Any exception except one that ends the program counts as a failed fsync, and is retried.
        """
        self._sync_wanted = False
        try:
            await run_on_thread(self._journal.begin_sync())
            # A hundred thousand idle channels must not use file descriptors.
            self._journal.park()
        except Exception as error:  # noqa: BLE001 - a failed fsync is retried
            self._log_failure("synced", error)
            self._want_sync()
            return False
        finally:
            self._background = None
        if self._journal.size_bytes > self._compact_above:
            self.flush()
        return True

    def _begin_compaction(self) -> None:
        """Begin it when no record is pending: if it fails, the old journal must be complete.

        All flushed records are written, so a failure here is not a failure of the flush.
        """
        if not self._state.is_whole:
            return  # a partial change must not become the journal's snapshot
        try:
            base = snapshot(self._state)
            self._background = start_job("journal compaction", self._compact(base))
        except Exception as error:  # noqa: BLE001 - the journal grows further, as after a failure
            self._compaction_failed(error)
        else:
            self._compacting = True  # the task begins in a later iteration of the loop

    async def _compact(self, base: bytes) -> bool:
        """Replace the journal by a snapshot, durably; False if the write failed."""
        done = False
        try:
            await run_on_thread(partial(self._journal.compact, base))
            self._compact_above = max(_COMPACT_BYTES, _GROWTH * len(base))
            done = True
        except Exception as error:  # noqa: BLE001 - the outermost handler of a task
            self._compaction_failed(error)
        finally:
            self._background, self._compacting = None, False
        self.flush()
        return done

    def _compaction_failed(self, error: Exception) -> None:
        """Continue with the old journal, which is still valid."""
        self._compact_above = self._journal.size_bytes + _COMPACT_BYTES
        self._syncs.failure_log.warning("cannot compact a channel's journal: %s", _reason(error))

    def _log_failure(self, what: str, error: Exception) -> None:
        if not self._failing:
            self._syncs.failure_log.warning(
                "a channel's journal cannot be %s, will retry: %s", what, _reason(error)
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

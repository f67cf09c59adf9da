"""Journal of a channel's state: written as a snapshot, and restored after a restart.

Owns the contents of a snapshot, and the state that results from records. Does not own the bytes of
a record (`records`) nor when they are written (`penstock.broker.channel.keeping`).

Invariant: a replay gives the state at the last record, except that messages in flight wait, due at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.state.state import ChannelState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    return state, _settle(state, starts, ends)


def _settle(state: ChannelState, starts: Sequence[int], ends: Sequence[int]) -> bool:
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
    state.retries.ripen(0)
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

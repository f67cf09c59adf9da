"""Merge of the queues of one nsqd topic: each message once, with the channels that need it.

nsqd keeps a copy of a message for every channel, and one more in the topic's own queue while no
channel has it yet. Copies are identified by time and id. Pure.

Invariants: a message that some channel needs occurs once; no channel gets a message that is not in
its own queue, except those in the topic's queue, which all channels get. Delivered messages come
first, then all others, each ordered by time of publication: nsqd appends the messages in memory
when it stops, so the order in the files differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from penstock.broker.nsq_import.nsqd_records import NsqdRecords

    Numbers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BacklogShare:
    """A channel's part of a backlog.

    Attributes:
        wanted: For each message before the topic's own: whether the channel still needs it.
        attempts: Deliveries on this channel of each of the first `NsqBacklog.delivered_count`
            messages.
    """

    wanted: Flags
    attempts: npt.NDArray[np.uint16]

    def unwanted(self) -> list[tuple[int, int]]:
        """Return the ranges of messages that the channel has finished."""
        edges = np.flatnonzero(np.diff(self.wanted, prepend=True, append=True))
        return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


class NsqBacklog:
    """The messages of one topic, in the order in which they are written.

    Args:
        own: The topic's own queue: messages that no channel has.
        channels: The queue of each channel; empty for a channel without one.

    Attributes:
        delivered_count: Number of messages at the beginning that were delivered on some channel.
        handed: Number of messages at the beginning from channels; the topic's own follow.
        shares: For each channel, its part of the messages from channels.
    """

    def __init__(
        self, own: Iterable[NsqdRecords], channels: Mapping[str, Iterable[NsqdRecords]]
    ) -> None:
        self._batches: list[NsqdRecords] = []
        tables = [self._table(records) for records in channels.values()]
        handed = _merge(tables)
        rest = _merge([self._table(own)])
        # If nsqd was killed, the topic's queue may still contain messages that channels have.
        known = np.isin(rest.keys, handed.keys)
        again = np.isin(handed.keys, rest.keys[known])
        order = np.argsort(handed.attempts == 0, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.delivered_count = int(np.count_nonzero(handed.attempts))
        self.handed = len(order)
        self.shares: dict[str, BacklogShare] = {}
        for number, name in enumerate(channels):
            mine = handed.queues == number
            wanted = again[order]
            attempts = np.zeros(len(order), np.uint16)
            places = place[handed.groups[mine]]
            wanted[places] = True
            attempts[places] = handed.each_attempts[mine]
            self.shares[name] = BacklogShare(wanted, attempts[: self.delivered_count])
        self._rows = np.concatenate([handed.rows[order], rest.rows[~known]])
        times_ns = np.concatenate([handed.times[order], rest.times[~known]])
        # As in a disk queue: times never decrease.
        self._times_ms = np.maximum.accumulate(times_ns // 1_000_000)

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(
        self, max_messages: int, max_bytes: int, max_span_ms: int
    ) -> Iterator[tuple[int, pa.BinaryArray]]:
        """Yield the messages in batches, each with the time of its first message, epoch ms.

        Args:
            max_messages: Maximum messages of a batch.
            max_bytes: Maximum bytes of a batch with more than one message.
            max_span_ms: Exclusive limit on the time between the first and the last message.
        """
        for start in range(0, len(self._rows), max_messages):
            bodies = self._bodies(self._rows[start : start + max_messages])
            times = self._times_ms[start : start + max_messages]
            ends = np.cumsum(pc.binary_length(bodies).to_numpy(zero_copy_only=False))
            first = 0
            while first < len(bodies):
                before = int(ends[first - 1]) if first else 0
                last = min(
                    max(first + 1, int(np.searchsorted(ends, before + max_bytes, "right"))),
                    int(np.searchsorted(times, times[first] + max_span_ms)),
                )
                yield int(times[first]), bodies.slice(first, last - first)
                first = last

    def _bodies(self, rows: Numbers) -> pa.BinaryArray:
        batches, indexes = rows >> 32, rows & 0xFFFFFFFF
        order = np.argsort(batches, kind="stable")
        borders = np.flatnonzero(np.diff(batches[order])) + 1
        parts = [
            self._batches[int(batches[part[0]])].bodies.take(pa.array(indexes[part]))
            for part in np.split(order, borders)
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(pa.array(back))

    def _table(self, queue: Iterable[NsqdRecords]) -> _Table:
        times, ids, attempts, rows = [_NONE], [_NONE], [_NONE], [_NONE]
        for records in queue:
            times.append(records.times_ns)
            ids.append(records.ids)
            attempts.append(records.attempts.astype(np.int64))
            rows.append((len(self._batches) << 32) + np.arange(len(records), dtype=np.int64))
            self._batches.append(records)
        return _Table(*(np.concatenate(parts) for parts in (times, ids, attempts, rows)))


_NONE = np.empty(0, np.int64)
_KEY = np.dtype([("time", np.int64), ("id", np.int64)])


@dataclass(frozen=True, slots=True)
class _Table:
    """One queue: for each record its time, id, attempts, and position (batch and index)."""

    times: Numbers
    ids: Numbers
    attempts: Numbers
    rows: Numbers


@dataclass(frozen=True, slots=True)
class _Merged:
    """Merged queues: the first four fields by message, the others by record.

    Attributes:
        keys: Time and id.
        times: Time of publication, epoch ns.
        attempts: Maximum number of deliveries on any channel.
        rows: Position of its body.
        queues: Number of the record's queue.
        groups: Number of the message of which the record is a copy.
        each_attempts: Number of deliveries on the record's channel.
    """

    keys: npt.NDArray[np.void]
    times: Numbers
    attempts: Numbers
    rows: Numbers
    queues: Numbers
    groups: Numbers
    each_attempts: Numbers


def _merge(tables: list[_Table]) -> _Merged:
    """Merge queues, ordered by time and id; copies become one message."""
    counts = [len(table.rows) for table in tables]
    queues = np.repeat(np.arange(len(tables)), counts)
    times, ids, attempts, rows = (
        np.concatenate([_NONE, *(getattr(table, name) for table in tables)])
        for name in ("times", "ids", "attempts", "rows")
    )
    order = np.lexsort((queues, ids, times))
    times, ids, attempts, rows = times[order], ids[order], attempts[order], rows[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(times) != 0) | (np.diff(ids) != 0)
    firsts = np.flatnonzero(is_first)
    keys = np.empty(len(firsts), _KEY)
    keys["time"], keys["id"] = times[firsts], ids[firsts]
    return _Merged(
        keys,
        times[firsts],
        np.maximum.reduceat(attempts, firsts) if len(firsts) else _NONE,
        rows[firsts],
        queues[order],
        np.cumsum(is_first) - 1,
        attempts,
    )

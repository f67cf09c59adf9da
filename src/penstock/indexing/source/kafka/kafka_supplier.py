"""A Kafka topic as a `RecordSupplier`.

Reports only durable records: up to the cluster's high watermark, or up to the last stable offset if
only committed records are read, which is the default. Kafka deletes records by its own rules, and
Penstock cannot delay this. Records that were deleted before they were read are detected and
reported.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.indexing.engine import KafkaRange
from penstock.indexing.kafka_settings import resolved
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.indexing.source.kafka.kafka_protocols import OffsetsGoneError
from penstock.indexing.source.partition_rotation import StreamPartitionRotation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.kafka_settings import Setting, Settings
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.source.kafka.kafka_protocols import Connect, KafkaAdmin
    from penstock.storage.secrets.secret_sources import Secrets

_POLL_S: Final = 0.25
_BACKLOG_RECORDS: Final = 10_000
_SAMPLE_RECORDS: Final = 500
_SAMPLE_WAIT_S: Final = 2.0
_LAST_RECORDS: Final = 2
# A client prefetches records that are not requested; one batch of records is the minimum.
_FEW_RECORDS: Final = (("max.partition.fetch.bytes", "1024"), ("queued.min.messages", "1"))


class KafkaSupplier:
    """One topic; the first call connects. One thread at a time, and another for `spans_ms`.

    Args:
        connect: Creates clients.
        clock: Used to wait for new records.
        topic: Its name.
        settings: Settings of the client, as `kafka_settings.checked` returns them.
        secrets: The secrets of this process.
    """

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        topic: str,
        settings: Mapping[str, Setting],
        secrets: Secrets,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._given = settings
        self._secrets = secrets
        self._condition = threading.Condition()
        self._opened: tuple[KafkaAdmin, Settings] | None = None
        self._record_bytes = 0
        self._rotation = StreamPartitionRotation(clock)  # For `spans_ms`.
        self.stream = topic

    def available(
        self, *, after: Offsets | None = None, wait_ms: int = 0, stream_id: str = ""
    ) -> SeenTopic:
        """Return the id of the topic and its durable records.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The cluster does not answer.
            InvalidRequest: The settings are invalid, or a secret is not set.
        """
        admin, _ = self._open()
        until_s = self._clock.monotonic_s() + wait_ms / 1000
        seen = self._read_offsets(admin)
        if after is not None and not seen.is_another(stream_id):
            known = ends = {p: a.latest for p, a in seen.partitions.items()}
            while not _has_news(ends, after):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                with self._condition:
                    self._clock.wait(self._condition, min(left_s, _POLL_S))
                ends = admin.offsets(self.stream, known, latest=True)
            if ends != known:
                seen = self._read_offsets(admin)  # The topic may have been replaced meanwhile.
        return self._weighed(seen, after or {})

    def ranges(self, start: Offsets, end: Offsets, seen: SeenTopic) -> tuple[KafkaRange, ...]:
        """Return the ranges of the topic's partitions."""
        _, settings = self._open()
        return tuple(
            KafkaRange(
                p,
                self.stream,
                start[p],
                end[p],
                settings,
                (end[p] - start[p]) * seen.partitions[p].message_bytes,
            )
            for p in sorted(start)
            if start[p] < end[p]
        )

    def spans_ms(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int | None]:
        """Return the time between the first and the last records of ranges, in milliseconds.

        Partitions that are not reached within ten seconds are left out.
        """
        found: dict[int, int | None] = {}
        for p in self._rotation.among(ranges):
            start, end = ranges[p]
            first = self._times(p, start, 1)
            # The last offset may be the end marker of a transaction, which is not a record.
            last = self._times(p, max(start, end - _LAST_RECORDS), _LAST_RECORDS)
            found[p] = max(0, last[-1] - first[0]) if first and last else None
        return found

    def _times(self, partition: int, start: int, most: int) -> list[int]:
        settings = resolved(self._given, self._secrets)
        log = self._connect.log(
            (*settings, *_FEW_RECORDS), self.stream, partition, start, whole=True
        )
        try:
            return [ms for ms in log.take(most, _SAMPLE_WAIT_S).times_ms if ms >= 0]
        except OffsetsGoneError:
            return []
        finally:
            log.close()

    def hold(self, name: str, offsets: Offsets) -> None:
        """Do nothing: Kafka deletes by its own rules."""

    def let_go(self, name: str, partitions: Sequence[int]) -> None:
        """Do nothing."""

    def _open(self) -> tuple[KafkaAdmin, Settings]:
        if self._opened is None:
            settings = resolved(self._given, self._secrets)
            self._opened = self._connect.admin(settings), settings
        return self._opened

    def _read_offsets(self, admin: KafkaAdmin) -> SeenTopic:
        shape = admin.describe(self.stream)
        begins = admin.offsets(self.stream, shape.partitions, latest=False)
        ends = admin.offsets(self.stream, shape.partitions, latest=True)
        return SeenTopic(
            shape.id,
            {
                # Records may be deleted between the two calls.
                p: AvailableRange(f"{self.stream}/{p}", begins[p], max(begins[p], ends[p]))
                for p in sorted(shape.partitions)
            },
        )

    def _weighed(self, seen: SeenTopic, after: Offsets) -> SeenTopic:
        """Determine the size of records if there is a backlog that is read in bulk."""
        if not self._record_bytes:
            for p, found in seen.partitions.items():
                start = max(found.earliest, after.get(p, found.latest))
                if found.latest - start >= _BACKLOG_RECORDS:
                    self._record_bytes = self._sample(p, start)
                    break
        size = self._record_bytes
        return SeenTopic(
            seen.id,
            {
                p: AvailableRange(a.folder, a.earliest, a.latest, size)
                for p, a in seen.partitions.items()
            },
        )

    def _sample(self, partition: int, start: int) -> int:
        _, settings = self._open()
        log = self._connect.log(settings, self.stream, partition, start)
        try:
            values = log.take(_SAMPLE_RECORDS, _SAMPLE_WAIT_S).values
        except PenstockError:
            return 0  # The size only affects batches; reading reports the error.
        finally:
            log.close()
        return sum(map(len, filter(None, values))) // len(values) if values else 0


def _has_news(ends: Mapping[int, int], after: Offsets) -> bool:
    return any(ends[p] > offset if p in ends else True for p, offset in after.items())

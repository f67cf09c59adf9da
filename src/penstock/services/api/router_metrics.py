"""Metrics of the router from other parts: broker, overlord, metadata; read at each scrape.

Owns their names and computation. A part that does not answer is reported as `penstock_part_up 0`;
the metrics of other parts are reported nevertheless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from penstock.core.bearer import Bearer
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.loop_stalls import samples_of
from penstock.core.metrics import Kind, Sample
from penstock.core.threads import death_samples
from penstock.core.waits import waits_from_json
from penstock.indexing.specs.compaction import AUTOCOMPACT
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.storage.metadata import CountsRow, Snapshot
from penstock.storage.metadata.tables.stream_cursors import StreamCursor

# A scrape must not wait long for a part that is restarting.
TIMEOUT_S = 3.0

_OUTCOMES = (
    "processed",
    "unparseable",
    "thrown_away_late",
    "thrown_away_early",
    "thrown_away_filtered",
)


class CursorList(Protocol):
    """The part of `StreamCursors` that this module uses."""

    def list(self) -> Sequence[StreamCursor]:
        """Return the cursors of all datasources."""
        ...


class MetricsStore(Protocol):
    """The part of `MetadataStore` that this module uses."""

    def snapshot(self, datasource: str | None = None, *, known: Snapshot | None = None) -> Snapshot:
        """Read all used segments and announced files as of one instant."""
        ...

    @property
    def stream_cursors(self) -> CursorList:
        """How far streams have read datasources."""
        ...

    def all_counts(self) -> Mapping[str, CountsRow]:
        """Return the rows counted by all publishes of each supervisor that has published."""
        ...


# Type, name, the broker's name, and meaning.
_ACCESS: Final[Sequence[tuple[Kind, str, str, str]]] = (
    (
        "counter",
        "penstock_broker_access_denied_total",
        "access_denied_total",
        "Requests refused by the rules of access at the broker",
    ),
    (
        "counter",
        "penstock_broker_access_failed_logins_total",
        "access_failed_logins_total",
        "Requests with an invalid credential at the broker",
    ),
    (
        "gauge",
        "penstock_broker_access_invalid_files",
        "access_invalid_files",
        "Files of access that are not valid at the broker",
    ),
    (
        "gauge",
        "penstock_broker_audit_waiting",
        "audit_waiting",
        "Records of the broker's audit that are not in its topic yet",
    ),
)


def _gauge(name: str, about: str, value: float, **labels: str) -> Sample:
    return Sample(name, "gauge", about, tuple(labels.items()), value)


class RouterMetrics:
    """Reads the parts. Each source is called on the threads that answer scrapes."""

    def __init__(
        self,
        store: MetricsStore,
        broker: BrokerFinder,
        directory: LeaseDirectory,
        token: Bearer = None,
        *,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._store = store
        self._broker = broker
        self._directory = directory
        self._token = token
        self._snapshot: Snapshot | None = None
        self._sizes: tuple[int, Mapping[str, tuple[int, int, int]]] = (-1, {})

    def sources(self) -> tuple[Callable[[], Iterable[Sample]], ...]:
        """Return the sources for `metrics_text`."""
        return (
            self.of_metadata,
            lambda: self._guarded("broker", self.of_broker),
            lambda: self._guarded("overlord", self.of_overlord),
        )

    def _guarded(self, part: str, source: Callable[[], Iterable[Sample]]) -> list[Sample]:
        about = "Whether a part answered this scrape"
        try:
            return [*source(), _gauge("penstock_part_up", about, 1, part=part)]
        except PenstockError:
            return [_gauge("penstock_part_up", about, 0, part=part)]

    def of_metadata(self) -> Iterator[Sample]:
        """Count segments and announced rows."""
        # Datasources that did not change since the last scrape are not read or added up again.
        snapshot = self._snapshot = self._store.snapshot(known=self._snapshot)
        revision, sizes = self._sizes
        if revision != snapshot.segments_revision:
            sizes = _sizes(snapshot)
            self._sizes = snapshot.segments_revision, sizes
        waiting = Counter[str]()
        for row in snapshot.announced:
            waiting[row.datasource] += row.file.rows
        for name in sorted(sizes.keys() | waiting.keys()):
            count, rows, size = sizes.get(name, (0, 0, 0))
            yield _gauge("penstock_segments", "Used segments", count, datasource=name)
            yield _gauge("penstock_segment_rows", "Rows in segments", rows, datasource=name)
            yield _gauge("penstock_segment_bytes", "Size of segments", size, datasource=name)
            yield _gauge(
                "penstock_announced_rows", "Rows not published yet", waiting[name], datasource=name
            )

        for cursor in self._store.stream_cursors.list():
            yield _gauge(
                "penstock_datasource_cursor_lag",
                "Rows that a stream has not read",
                cursor.rows_behind,
                datasource=cursor.datasource,
                cursor=cursor.name,
            )

    def of_broker(self) -> Iterator[Sample]:
        """Read the depth and the end of each stream partition, refused requests and stalls."""
        broker = JsonClient(
            self._broker.http().url, token=self._token, timeout_s=TIMEOUT_S, role="broker"
        )
        stats = broker.get("/stats", {"format": "json"})
        http = stats.get("http") if isinstance(stats, dict) else None
        refused = http.get("refused") if isinstance(http, dict) else None
        for reason in refused if isinstance(refused, dict) else ():
            yield Sample(
                "penstock_broker_http_refused_total",
                "counter",
                "HTTP connections and requests that the broker refused, by reason",
                (("reason", str(reason)),),
                whole(refused, reason),
            )
        access = stats.get("access") if isinstance(stats, dict) else None
        if isinstance(access, dict):
            yield from _access(access)
        stalls = stats.get("loop_stall_ms") if isinstance(stats, dict) else None
        if isinstance(stalls, dict):
            longest, count = float(stalls.get("max", 0)), float(stalls.get("over_50", 0))
            yield from samples_of("broker", "broker", longest, count)
        unsynced = stats.get("unsynced") if isinstance(stats, dict) else None
        if isinstance(unsynced, dict):
            about = "Age of the oldest message that is not on the disk"
            age_s = whole(unsynced, "age_ms") / 1000
            yield _gauge("penstock_broker_unsynced_seconds", about, age_s)
        deaths = stats.get("thread_deaths") if isinstance(stats, dict) else None
        if isinstance(deaths, dict):
            counts = {str(name): whole(deaths, name) for name in deaths}
            yield from death_samples("broker", counts)
        for topic in objects(stats, "topics"):
            name = str(topic.get("topic_name"))
            yield Sample(
                "penstock_topic_repeated_publishes_total",
                "counter",
                "Publishes that a producer repeated, and that were stored once",
                (("topic", name),),
                whole(topic, "repeated_publishes"),
            )
            for part in objects(topic, "partitions"):
                labels = {"topic": name, "partition": str(part.get("partition"))}
                latest, earliest = whole(part, "latest"), whole(part, "earliest")
                yield _gauge(
                    "penstock_topic_messages", "Messages kept", latest - earliest, **labels
                )
                yield _gauge("penstock_topic_latest_offset", "Next offset", latest, **labels)
                cursors = part.get("cursors")
                for cursor in cursors if isinstance(cursors, dict) else ():
                    yield _gauge(
                        "penstock_topic_cursor_lag",
                        "Messages after a reader's cursor",
                        latest - whole(cursors, cursor),
                        **labels,
                        cursor=str(cursor),
                    )

    def of_overlord(self) -> Iterator[Sample]:
        """Read lag, health and rows of each supervisor, and the tasks."""
        address = self._directory.find("overlord")
        overlord = JsonClient(address.url, token=self._token, timeout_s=TIMEOUT_S, role="overlord")
        prefix = "/druid/indexer/v1"
        # One request and one query for all supervisors.
        supervisors = objects(overlord.get(f"{prefix}/supervisor", {"state": "true"}))
        all_counts = self._store.all_counts() if supervisors else {}
        for one in supervisors:
            name = str(one.get("id"))
            yield _gauge(
                "penstock_supervisor_healthy",
                "1 when healthy",
                float(one.get("healthy") is True),
                supervisor=name,
            )
            for wait in waits_from_json(one.get("waits")):
                yield _gauge(
                    "penstock_supervisor_waiting_seconds",
                    "How long a supervisor or its tasks wait for a dependency that fails",
                    max(0, self._clock.now_ms() - wait.since_ms) / 1000,
                    supervisor=name,
                    dependency=wait.dependency.value,
                )
            if one.get("type") == AUTOCOMPACT:  # it does not read a stream
                continue
            lag = whole(one, "aggregateLag")
            yield _gauge("penstock_supervisor_lag", "Messages yet to persist", lag, supervisor=name)
            if isinstance(lag_ms := one.get("maxLagMillis"), int):
                yield _gauge(
                    "penstock_supervisor_lag_seconds",
                    "Time from the first message that is not read to the newest",
                    lag_ms / 1000,
                    supervisor=name,
                )
            counts = all_counts.get(name, CountsRow())
            for outcome in _OUTCOMES:
                yield _gauge(
                    "penstock_supervisor_rows",
                    "Rows of published sequences by outcome",
                    getattr(counts, outcome),
                    supervisor=name,
                    outcome=outcome,
                )
        running = objects(overlord.get(f"{prefix}/runningTasks"))
        pending = objects(overlord.get(f"{prefix}/pendingTasks"))
        yield _gauge("penstock_tasks", "Tasks", len(running), status="running")
        yield _gauge("penstock_tasks", "Tasks", len(pending), status="pending")


def _sizes(snapshot: Snapshot) -> dict[str, tuple[int, int, int]]:
    """Return how many segments each datasource has, their rows and their bytes."""
    found: dict[str, tuple[int, int, int]] = {}
    for row in snapshot.segments:
        count, rows, size = found.get(row.datasource, (0, 0, 0))
        rows += whole(row.payload, "totalRows")
        found[row.datasource] = (count + 1, rows, size + whole(row.payload, "size"))
    return found


def _access(counts: Mapping[str, object]) -> Iterator[Sample]:
    """Return the metrics of access at the broker; those of the audit only with `--audit-topic`."""
    for kind, name, field, about in _ACCESS:
        if field in counts:
            yield Sample(name, kind, about, (), whole(counts, field))
    for reason in ("deleted", "not_written"):
        if (field := f"audit_lost_total_{reason}") in counts:
            about = "Records of the broker's audit that do not reach its topic, by reason"
            labels = (("reason", reason),)
            lost = whole(counts, field)
            yield Sample("penstock_broker_audit_lost_total", "counter", about, labels, lost)

"""Rows of the tables of `sys`: segments, servers, tasks, supervisors and queries.

Each table has the rows that the HTTP API of the same things shows the principal. Segments come from
the metadata, all from one transaction; tasks and supervisors from the overlord, which decides for
the principal. If it does not answer, the query fails: no rows would mean that there are no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import orjson

from penstock.core.access.rules import Action
from penstock.core.bearer import Bearer
from penstock.core.errors import InvalidRequest, NotReachable, Unavailable
from penstock.core.intervals import format_time
from penstock.core.tls_trust import TRUST
from penstock.segments.segment_summary import hidden_ids
from penstock.services.api.access_rules import STATUS
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.overview import SERVICES
from penstock.services.json_client import JsonClient
from penstock.storage.metadata.rows.segments import segment_id

if TYPE_CHECKING:
    from penstock.core.sql.metadata_reads import MetadataRead
    from penstock.services.api.request_access import RequestAccess
    from penstock.services.membership.leases import LeaseDirectory
    from penstock.services.membership.membership import BrokerFinder
    from penstock.spark.sql.metadata_rows import MetadataRows
    from penstock.storage.metadata import AnnouncedRow, LeaseRow, ListedSegment, MetadataStore
    from penstock.storage.metadata.segment_overview import SegmentOverview

T = TypeVar("T")

OVERLORD_TIMEOUT_S: Final = 20.0
_ROWS_AT_ONCE: Final = 1_000
_OF_VISIBILITY: Final = frozenset(
    {"num_replicas", "is_active", "is_available", "is_overshadowed", "replication_factor"}
)
# Druid's name of a process that runs tasks.
_SERVER_TYPES: Final = {"worker": "middle_manager"}
_BROKER: Final = "broker"
_NO_PORT: Final = -1


@dataclass(frozen=True, slots=True)
class SystemTables:
    """Sources of the tables of `sys` at one router.

    Attributes:
        store: The metadata store.
        directory: Lookup of services.
        broker: Lookup of the broker.
        bearer: Bearer token of this process for the overlord.
    """

    store: MetadataStore
    directory: LeaseDirectory
    broker: BrokerFinder
    bearer: Bearer = None

    def seen_by(
        self,
        access: RequestAccess,
        headers: Mapping[str, str],
        queries: Callable[[], Sequence[Mapping[str, object]]],
    ) -> SeenSystemTables:
        """Return the tables as the principal of a request sees them.

        Args:
            access: The access of the request.
            headers: Headers with which another process answers for its principal.
            queries: Returns the running queries that the principal sees.
        """
        return SeenSystemTables(self, access, headers, queries)


class SeenSystemTables:
    """`MetadataSource` of the tables of `sys` for one request."""

    def __init__(
        self,
        tables: SystemTables,
        access: RequestAccess,
        headers: Mapping[str, str],
        queries: Callable[[], Sequence[Mapping[str, object]]],
    ) -> None:
        self._tables = tables
        self._access = access
        self._headers = headers
        self._queries = queries

    def collect(self, read: MetadataRead, rows: MetadataRows) -> None:
        """Append the rows that a query needs.

        Raises:
            Forbidden: The principal may not read the table.
            Unavailable: The overlord does not answer, or the metadata cannot be read.
        """
        if read.table.name == "segments":
            self._tables.store.segment_overviews.read(
                lambda overview: self._segments(overview, read, rows)
            )
            return
        found = {
            "servers": self._servers,
            "server_segments": self._server_segments,
            "tasks": self._tasks,
            "supervisors": self._supervisors,
            "queries": self._running,
        }[read.table.name]()
        _append(rows, found)

    def _segments(self, overview: SegmentOverview, read: MetadataRead, rows: MetadataRows) -> None:
        rows.restart()
        readable = self._access.readable(overview.names())
        names = [name for name in readable if read.keys is None or name in read.keys]
        has_payloads = not _OF_PAYLOAD.keys().isdisjoint(read.columns)
        for name in names:
            hidden = _hidden(overview, name) if read.columns & _OF_VISIBILITY else frozenset()
            for part in overview.listed(name, has_payloads=has_payloads):
                rows.append(_published(part, hidden, read.columns), len(part))
        announced = overview.announced(names[0] if len(names) == 1 else None)
        shown = set(names)
        _append(rows, _unpublished(one for one in announced if one.datasource in shown))

    def _servers(self) -> Iterator[Mapping[str, object]]:
        self._access.require(Action.READ, STATUS)
        directory = self._tables.directory
        leader = _found(lambda: str(directory.find("overlord")))
        for service in SERVICES:
            for row in directory.all(service):
                is_leader = f"{row.host}:{row.port}" == leader if service == "overlord" else None
                yield _server(service, row.host, row.port, row, is_leader)
        brokers = directory.all(_BROKER)
        for row in brokers:
            yield _server(_BROKER, row.host, row.port, row)
        if not brokers and (address := _found(self._tables.broker.http)) is not None:
            yield _server(_BROKER, address.host, address.port)

    def _server_segments(self) -> Iterator[Mapping[str, object]]:
        self._access.require(Action.READ, STATUS)
        return iter(())

    def _tasks(self) -> Iterator[Mapping[str, object]]:
        for one in self._of_overlord(f"{PREFIX}/tasks", list[_Task]):
            place = one.location
            yield {
                "task_id": one.id,
                "group_id": one.group_id,
                "type": one.type,
                "datasource": one.data_source,
                "created_time": one.created_time,
                "queue_insertion_time": one.queue_insertion_time,
                "status": one.status_code,
                "runner_status": one.runner_status_code,
                "duration": one.duration,
                "location": None if place.host is None else f"{place.host}:{place.port}",
                "host": place.host,
                "plaintext_port": place.port if place.tls_port == _NO_PORT else _NO_PORT,
                "tls_port": place.tls_port,
                "error_msg": one.error_msg,
            }

    def _supervisors(self) -> Iterator[Mapping[str, object]]:
        for one in self._of_overlord(f"{PREFIX}/supervisor?system", list[_Supervisor]):
            yield {
                "supervisor_id": one.id,
                "datasource": one.data_source,
                "state": one.state,
                "detailed_state": one.detailed_state,
                "healthy": int(one.healthy),
                "type": one.type,
                "source": one.source,
                "suspended": int(one.suspended),
                "spec": one.spec_string,
            }

    def _of_overlord(self, path: str, kind: type[T]) -> T:
        """Return an answer of the overlord to the principal.

        Raises:
            Unavailable: It does not answer, or answers in another form.
        """
        tables = self._tables
        client = JsonClient(
            tables.directory.find("overlord").url,
            token=tables.bearer,
            timeout_s=OVERLORD_TIMEOUT_S,
            role="overlord",
        )
        try:
            answer = client.request("GET", path, headers=self._headers)
        except NotReachable as error:  # narrow: translates
            raise Unavailable(
                "the overlord, which knows tasks and supervisors, does not answer: it is"
                f" restarting, or its log has the reason; try again ({error})"
            ) from None
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as error:  # narrow: translates
            raise Unavailable(
                f"the overlord answers in another form ({error}): check that it is the same release"
                " of Penstock"
            ) from None

    def _running(self) -> Iterator[Mapping[str, object]]:
        for one in self._queries():
            yield {
                "id": one["queryId"],
                "engine": one["engine"],
                "state": "RUNNING" if one["state"] == "RUNNING" else "ACCEPTED",
                "info": orjson.dumps(
                    {
                        "sqlQueryId": one["queryId"],
                        "sql": one["statement"],
                        "identity": one["principal"],
                        "startTime": one["startTime"],
                    }
                ).decode(),
            }


class _Location(msgspec.Struct, rename="camel"):
    host: str | None = None
    port: int = _NO_PORT
    tls_port: int = _NO_PORT


class _Task(msgspec.Struct, rename="camel", gc=False):
    id: str
    group_id: str
    type: str
    created_time: str
    queue_insertion_time: str
    status_code: str
    runner_status_code: str
    duration: int
    location: _Location
    data_source: str
    error_msg: str | None = None


class _Supervisor(msgspec.Struct, rename="camel", gc=False):
    id: str
    state: str
    detailed_state: str
    healthy: bool
    suspended: bool
    data_source: str
    type: str = ""
    source: str | None = None
    spec_string: str | None = None


class _Payload(msgspec.Struct, rename="camel", gc=False):
    shard_spec: msgspec.Raw = msgspec.Raw(b"null")
    dimensions: str | list[str] | None = None
    metrics: str | list[str] | None = None
    projections: str | list[str] | None = None
    last_compaction_state: msgspec.Raw = msgspec.Raw(b"null")


_read_payload = msgspec.json.Decoder(_Payload).decode


def _append(rows: MetadataRows, found: Iterator[Mapping[str, object]]) -> None:
    while batch := list(islice(found, _ROWS_AT_ONCE)):
        names = [column.name for column in rows.read.table.columns]
        rows.append({name: [one.get(name) for one in batch] for name in names}, len(batch))


def _hidden(overview: SegmentOverview, datasource: str) -> frozenset[str]:
    """Return the ids of the segments that newer ones hide completely."""
    found: set[str] = set()
    for part in overview.time_ranges(datasource, may_be_hidden=True):
        found.update(hidden_ids(overview, datasource, part.interval))
    return frozenset(found)


# How each column of a segment is found that neither its visibility nor its payload decides.
_OF_SEGMENT: Final[Mapping[str, Callable[[ListedSegment], object]]] = {
    "segment_id": lambda one: one.id,
    "datasource": lambda one: one.datasource,
    "start": lambda one: format_time(one.start_ms),
    "end": lambda one: format_time(one.end_ms),
    "size": lambda one: one.bytes,
    "version": lambda one: one.version,
    "partition_num": lambda one: one.partition_number,
    "num_rows": lambda one: one.row_count,
    "is_published": lambda _one: 1,
    "is_realtime": lambda _one: 0,
}
_OF_PAYLOAD: Final[Mapping[str, Callable[[_Payload], object]]] = {
    "shard_spec": lambda one: _json(one.shard_spec),
    "dimensions": lambda one: _names(one.dimensions),
    "metrics": lambda one: _names(one.metrics),
    "projections": lambda one: None if one.projections is None else _names(one.projections),
    "last_compaction_state": lambda one: _json(one.last_compaction_state),
}


def _published(
    part: Sequence[ListedSegment], hidden: Collection[str], wanted: Collection[str]
) -> dict[str, Sequence[object]]:
    """Return the wanted columns of segments."""
    shown = [int(one.id not in hidden) for one in part]
    columns: dict[str, Sequence[object]] = {
        **dict.fromkeys(_OF_VISIBILITY, shown),
        "is_overshadowed": [1 - one for one in shown],
    }
    for name, value_of in _OF_SEGMENT.items():
        if name in wanted:
            columns[name] = [*map(value_of, part)]
    if not _OF_PAYLOAD.keys().isdisjoint(wanted):
        payloads = [*map(_payload_of, part)]
        columns |= {name: [*map(of, payloads)] for name, of in _OF_PAYLOAD.items()}
    return columns


def _payload_of(segment: ListedSegment) -> _Payload:
    try:
        return _read_payload(segment.payload)
    except msgspec.DecodeError as error:  # narrow: translates
        raise InvalidRequest(
            f"the payload of segment {segment.id!r} in the metadata cannot be read ({error}): mark"
            " the segment unused and load its interval again"
        ) from error


def _json(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    return None if text == "null" else text


def _names(names: str | list[str] | None) -> str:
    """Return names, which Druid joins by commas, as a JSON list."""
    found = names.split(",") if isinstance(names, str) else names or []
    return orjson.dumps([one for one in found if one]).decode()


def _unpublished(rows: Iterator[AnnouncedRow]) -> Iterator[dict[str, object]]:
    """Yield a row for the announced files of each sequence and time chunk."""
    groups: dict[tuple[str, int, int, str], list[AnnouncedRow]] = {}
    for one in rows:
        interval = one.file.interval
        key = (one.datasource, interval.start_ms, interval.end_ms, one.sequence_name)
        groups.setdefault(key, []).append(one)
    for (datasource, start_ms, end_ms, sequence), found in groups.items():
        sizes = (one.file.payload.get("bytes") for one in found)
        yield {
            "segment_id": segment_id(datasource, found[0].file.interval, sequence, 0),
            "datasource": datasource,
            "start": format_time(start_ms),
            "end": format_time(end_ms),
            "size": sum(size for size in sizes if isinstance(size, int)),
            "num_rows": sum(one.file.rows for one in found),
            **dict.fromkeys(("num_replicas", "is_active", "is_available", "is_realtime"), 1),
            **dict.fromkeys(("is_published", "is_overshadowed"), 0),
            "replication_factor": -1,
        }


def _server(
    service: str, host: str, port: int, lease: LeaseRow | None = None, leads: bool | None = None
) -> dict[str, object]:
    is_tls = TRUST.scheme(host) == "https"
    return {
        "server": f"{host}:{port}",
        "host": host,
        "plaintext_port": _NO_PORT if is_tls else port,
        "tls_port": port if is_tls else _NO_PORT,
        "server_type": _SERVER_TYPES.get(service, service),
        "curr_size": 0,
        "max_size": 0,
        "is_leader": None if leads is None else int(leads),
        "start_time": format_time(lease.started_ms) if lease is not None else None,
    }


def _found(look_up: Callable[[], T]) -> T | None:
    """Return the result of a look-up; None if nothing is found."""
    try:
        return look_up()
    except Unavailable:
        return None

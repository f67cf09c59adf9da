"""Routes of lookups, and the lookups that the principal of a request may read.

Owns the JSON of lookups: Penstock's own, and that of Druid's coordinator, which knows one tier
here. `penstock.services.lookup_service` carries out the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import Full, InvalidRequest, NotFound
from penstock.core.instants import format_time
from penstock.core.names import normalised
from penstock.indexing.required_access import required_by_lookup
from penstock.indexing.secrets import masked
from penstock.indexing.specs.lookup_spec import (
    SPEC_BYTES_MAX,
    LookupSpec,
    checked_lookup,
    parse_lookup,
)
from penstock.services.api.asgi import JsonResponse, bounded_body, json_object
from penstock.services.api.coordinator.rules import COORDINATOR
from penstock.services.api.indexer.request_parts import author_and_comment, query_flag
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.services.lookup_service import LookupService, no_lookup
from penstock.spark.sql.lookup_tables import declared_columns, lookup_columns
from penstock.storage.metadata import AuditRow
from penstock.storage.metadata.tables.lookups import AUDIT_TYPE, NEVER_MS

if TYPE_CHECKING:
    from penstock.spark.tables.table_files import Columns
    from penstock.storage.lookup_rows import LookupTable, LookupTables
    from penstock.storage.metadata.tables.lookups import LookupRow

T = TypeVar("T")

LOOKUPS: Final = "/penstock/v1/lookups"
DRUID: Final = f"{COORDINATOR}/lookups"
TIER: Final = "__default"
"""The only tier."""
READING_MAX: Final = 2
"""Requests that read the files of lookups at a time; each may take a core and 1 GiB of memory."""
WAITING_OF_ONE_MAX: Final = 4
"""Such requests of one principal that run or wait."""


DETAILED_BYTES_MAX: Final = 32 << 20
"""Size of the maps in one answer."""


class SeenLookups:
    """`LookupSource`: the lookups that the principal of a request may read.

    Args:
        tables: All lookups.
        access: The access of the request.
    """

    def __init__(self, tables: LookupTables, access: RequestAccess) -> None:
        self._tables = tables
        self._access = access

    def names(self) -> Sequence[str]:
        """Return the names of all, in order."""
        return [one.name for one in self._tables.listed() if self._may_read(one.name)]

    def current(self, name: str) -> LookupTable | None:
        """Return the current version of one, and record the read; None: there is none."""
        found = self._tables.current(name)
        if found is None or not self._may_read(found.name):
            return None
        self._access.record(Action.READ, Resource(ResourceKind.LOOKUP, found.name))
        return found

    def described(self) -> Iterator[tuple[str, Columns]]:
        """Yield the names and columns of all, in order."""
        for row in self._tables.listed():
            if self._may_read(row.name) and (columns := self._columns(row)):
                yield row.name, columns

    def _columns(self, row: LookupRow) -> Columns:
        try:
            return declared_columns(checked_lookup(row.spec))
        except InvalidRequest:  # narrow: a spec that another release stored
            table = self._tables.current(row.name)
            return () if table is None else lookup_columns(table.rows.schema)

    def _may_read(self, name: str) -> bool:
        return self._access.may(Action.READ, ResourceKind.LOOKUP, name)


class LookupTableRoutes:
    """The routes of lookups.

    Args:
        service: Declares and refreshes them.
        tables: The current versions.
    """

    def __init__(self, service: LookupService, tables: LookupTables) -> None:
        self._service = service
        self._tables = tables
        self._threads = CapacityLimiter(READING_MAX)
        # Requests of each principal that read files. On the event loop only.
        self._reading: Counter[str] = Counter()

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = "/{lookup}"
        return [
            Route(LOOKUPS, self.listed, methods=["GET"]),
            Route(LOOKUPS, self.put, methods=["POST"]),
            Route(LOOKUPS + one, self.shown, methods=["GET"]),
            Route(LOOKUPS + one, self.remove, methods=["DELETE"]),
            Route(LOOKUPS + one + "/refresh", self.refresh, methods=["POST"]),
            Route(DRUID + "/config", self.druid_tiers, methods=["GET"]),
            Route(DRUID + "/config", self.druid_put_all, methods=["POST"]),
            Route(DRUID + "/config/{tier}", self.druid_names),
            Route(DRUID + "/config/{tier}" + one, self.druid_shown, methods=["GET"]),
            Route(DRUID + "/config/{tier}" + one, self.druid_put, methods=["POST"]),
            Route(DRUID + "/config/{tier}" + one, self.druid_remove, methods=["DELETE"]),
            Route(DRUID + "/status", self.druid_status_of_all),
            Route(DRUID + "/status/{tier}", self.druid_status_of_tier),
            Route(DRUID + "/status/{tier}" + one, self.druid_status),
        ]

    def listed(self, request: Request) -> Response:
        """List the lookups that the principal may read, by name, without their specs."""
        return JsonResponse({"lookups": [_state(row) for row in self._readable(request)]})

    def shown(self, request: Request) -> Response:
        """Return a lookup with its spec.

        Raises:
            NotFound: There is none of this name.
        """
        row = self._row(request)
        return JsonResponse({**_state(row), "spec": self._spec(row)})

    async def put(self, request: Request) -> Response:
        """Store a spec with the rows that it names; it replaces that of the same name.

        Raises:
            InvalidRequest: The spec is wrong, or its rows cannot be read or are not accepted.
            Forbidden: The principal may not write the lookup, or not read its input.
            Conflict: Another lookup has a name that differs only in case.
            Full: The principal has as many such requests as it may, or there are too many lookups.
        """
        body = await bounded_body(request, SPEC_BYTES_MAX)
        spec, given = await to_thread.run_sync(parse_lookup, body)
        row = await self._put(request, spec, given)
        return JsonResponse(_state(row))

    def remove(self, request: Request) -> Response:
        """Delete a lookup.

        Raises:
            NotFound: There is none of this name.
        """
        name = _name(request)
        self._service.delete(name, _entry(request, name, {}))
        return JsonResponse({"name": name})

    async def refresh(self, request: Request) -> Response:
        """Read the rows of a lookup again, with the rights of its owner or of the principal.

        Raises:
            NotFound: There is none of this name.
            InvalidRequest: Its rows are a map, or cannot be read.
            Forbidden: Neither may read its input now.
            Conflict: Another refresh or another spec came meanwhile.
        """
        access = access_of(request)
        work = partial(self._service.refresh, _name(request), partial(_has_rights, access))
        return JsonResponse(_state(await self._reads(request, work)))

    def druid_tiers(self, request: Request) -> Response:
        """List the names of the tiers. There is one."""
        access_of(request).require_known()
        return JsonResponse([TIER])

    async def druid_put_all(self, request: Request) -> Response:
        """Store several lookups, given by tier and name. Raises as `put`."""
        body = await json_object(request, SPEC_BYTES_MAX)
        wanted: list[tuple[LookupSpec, dict[str, object]]] = []
        for tier, lookups in body.items():
            _check_tier(tier)
            if not isinstance(lookups, dict):
                raise InvalidRequest("must be an object with names of lookups", place=tier)
            for name, value in lookups.items():
                parse = partial(parse_lookup, orjson.dumps(value), name=name)
                wanted.append(await to_thread.run_sync(parse))
        for spec, _ in wanted:
            _check_rights(access_of(request), spec)
        for spec, given in wanted:
            await self._put(request, spec, given)
        return JsonResponse(body, 202)

    def druid_names(self, request: Request) -> Response:
        """List the names of lookups; with `detailed`, their specs by name.

        Raises:
            NotFound: There is no such tier.
            InvalidRequest: The specs together are too large.
        """
        _check_tier(request.path_params["tier"])
        rows = self._readable(request)
        if query_flag(request, "detailed"):
            if sum(row.bytes for row in rows if "map" in row.spec) > DETAILED_BYTES_MAX:
                raise InvalidRequest(
                    f"the maps have more than {DETAILED_BYTES_MAX >> 20} MiB: leave it out, and"
                    " request each lookup by its name",
                    place="detailed",
                )
            return JsonResponse({row.name: self._druid_spec(row) for row in rows})
        return JsonResponse([row.name for row in rows])

    def druid_shown(self, request: Request) -> Response:
        """Return a lookup in Druid's form. Raises as `shown`."""
        _check_tier(request.path_params["tier"])
        return JsonResponse(self._druid_spec(self._row(request)))

    async def druid_put(self, request: Request) -> Response:
        """Store a lookup in Druid's form. Raises as `put`."""
        _check_tier(request.path_params["tier"])
        body = await bounded_body(request, SPEC_BYTES_MAX)
        parse = partial(parse_lookup, body, name=_name(request))
        spec, given = await to_thread.run_sync(parse)
        await self._put(request, spec, given)
        return Response(body, 202, media_type="application/json")

    def druid_remove(self, request: Request) -> Response:
        """Delete a lookup. Raises as `remove`."""
        _check_tier(request.path_params["tier"])
        self.remove(request)
        return Response(status_code=202)

    def druid_status_of_all(self, request: Request) -> Response:
        """Return which lookups are loaded: all, because their rows are stored with their specs."""
        return JsonResponse({TIER: self._loaded(request)})

    def druid_status_of_tier(self, request: Request) -> Response:
        """Return which lookups of a tier are loaded."""
        _check_tier(request.path_params["tier"])
        return JsonResponse(self._loaded(request))

    def druid_status(self, request: Request) -> Response:
        """Return whether a lookup is loaded. Raises as `shown`."""
        _check_tier(request.path_params["tier"])
        self._row(request)
        return JsonResponse({"loaded": True})

    def _loaded(self, request: Request) -> dict[str, object]:
        return {row.name: {"loaded": True} for row in self._readable(request)}

    def _readable(self, request: Request) -> list[LookupRow]:
        access = access_of(request)
        kind = ResourceKind.LOOKUP
        return [row for row in self._tables.listed() if access.may(Action.READ, kind, row.name)]

    def _row(self, request: Request) -> LookupRow:
        name = _name(request)
        found = next((row for row in self._tables.listed() if row.name == name), None)
        if found is None:
            raise no_lookup(name)
        return found

    def _spec(self, row: LookupRow) -> dict[str, object]:
        spec = masked({name: value for name, value in row.spec.items() if name != "map"})
        if "map" in row.spec and (table := self._tables.current(row.name)) is not None:
            keys, values = (table.rows.column(at).to_pylist() for at in (0, 1))
            spec["map"] = dict(zip(keys, values, strict=True))
        return spec

    def _druid_spec(self, row: LookupRow) -> dict[str, object]:
        spec = self._spec(row)
        factory = {"type": "map", "map": spec["map"]} if "map" in spec else {**spec}
        factory.setdefault("type", "penstock")
        return {"version": str(row.spec_version), "lookupExtractorFactory": factory}

    async def _put(
        self, request: Request, spec: LookupSpec, given: Mapping[str, object]
    ) -> LookupRow:
        access = access_of(request)
        _check_rights(access, spec)
        owner = await to_thread.run_sync(_owner, access, spec)
        entry = _entry(request, spec.name, masked(given))
        return await self._reads(request, partial(self._service.put, spec, given, entry, owner))

    async def _reads(self, request: Request, work: Callable[[], T]) -> T:
        """Do work that may read files, within the bounds of the principal.

        Raises:
            Full: The principal has as many such requests as it may.
        """
        owner = access_of(request).principal.id
        if self._reading[owner] >= WAITING_OF_ONE_MAX:
            raise Full(
                f"{owner} waits for the files of {WAITING_OF_ONE_MAX} lookups, as many as it may:"
                " wait for them"
            )
        self._reading[owner] += 1
        try:
            return await to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._reading[owner] -= 1
            if not self._reading[owner]:
                del self._reading[owner]


def _check_rights(access: RequestAccess, spec: LookupSpec) -> None:
    """Refuse a spec that the principal may not apply. Raises as `LookupTableRoutes.put`."""
    for action, resource in required_by_lookup(spec):
        access.require(action, resource)


def _has_rights(access: RequestAccess, spec: LookupSpec) -> bool:
    needed = required_by_lookup(spec)
    return all(access.may(action, one.kind, one.name) for action, one in needed)


def _owner(access: RequestAccess, spec: LookupSpec) -> str:
    """Return for whom a lookup is refreshed; empty: the installation. Raises as `owner_after`."""
    if spec.refresh_period is None:
        return access.owner_id
    return access.owner_after(required_by_lookup(spec), "the lookup would be refreshed")


def _entry(request: Request, name: str, payload: Mapping[str, object]) -> AuditRow:
    author, comment = author_and_comment(request)
    return AuditRow(name, AUDIT_TYPE, author, comment, payload)


def _name(request: Request) -> str:
    return normalised(request.path_params["lookup"])


def _check_tier(tier: str) -> None:
    if tier != TIER:
        raise NotFound(f"there is no tier {tier!r:.80}: all lookups are in the tier {TIER}")


def _state(row: LookupRow) -> dict[str, object]:
    """Return a lookup without its spec."""
    return {
        "name": row.name,
        "version": row.spec_version,
        "changed": format_time(row.changed_ms),
        "contentVersion": row.content_version,
        "loaded": format_time(row.loaded_ms),
        "rows": row.rows,
        "bytes": row.bytes,
        "nextRefresh": None if row.due_ms == NEVER_MS else format_time(row.due_ms),
        "failures": row.failures,
        "failed": format_time(row.failed_ms) if row.failures else None,
        "reason": row.reason or None,
        "owner": row.owner or None,
    }

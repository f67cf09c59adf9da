"""API of retention rules: read, set, and their history.

Owns Druid's paths and formats; the overlord's retention duty applies the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action
from penstock.core.names import DATASOURCE, TIER, check_name
from penstock.indexing.specs.retention_rules import parse_rules, rules_to_json
from penstock.services.api.access_rules import NeedsDefaultable
from penstock.services.api.asgi import JsonResponse, bounded_body
from penstock.services.api.indexer.request_parts import (
    author_and_comment,
    datasource_of,
    query_count,
    query_flag,
    query_interval,
)
from penstock.services.api.indexer.task_json import audit_to_json
from penstock.services.api.request_access import access_of
from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.tables.configuration import DEFAULT_RULES

COORDINATOR: Final = "/druid/coordinator/v1"

_HISTORY_MAX: Final = 1_000
_LOAD_ALL: Final = parse_rules([{"type": "loadForever"}])


class RuleRoutes:
    """The routes of retention rules."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        rules = COORDINATOR + "/rules"
        return [
            Route(rules, self.every),
            Route(rules + "/history", self.histories),
            Route(rules + "/{datasource}", self.of_datasource),
            Route(rules + "/{datasource}", self.put, methods=["POST"]),
            Route(rules + "/{datasource}/history", self.history),
        ]

    def every(self, request: Request) -> Response:
        """Return the rules by datasource, and those of all datasources."""
        every = {DEFAULT_RULES: _load_all(), **self._stored()}
        return JsonResponse({n: rules for n, rules in every.items() if _may_read(request, n)})

    def of_datasource(self, request: Request) -> Response:
        """Return the rules of a datasource; with `full` followed by those of all datasources."""
        stored = self._stored()
        default = stored.get(DEFAULT_RULES, _load_all())
        name = datasource_of(request, self._store.is_stored_name)
        if name == DEFAULT_RULES:
            return JsonResponse(default)
        own = stored.get(name, [])
        return JsonResponse([*own, *default] if query_flag(request, "full") else own)

    async def put(self, request: Request) -> Response:
        """Set the rules of a datasource, in order; with an empty list, only those of all apply.

        Rules under a name that an earlier release accepted and that is now invalid can only be
        deleted.
        """
        rules = rules_to_json(parse_rules(await bounded_body(request)))
        author, comment = author_and_comment(request)

        def store() -> Response:
            given = [rule for rule in rules if isinstance(rule, dict)]
            name = datasource_of(request, self._store.is_stored_name)
            if given:
                check_name(name, DATASOURCE, place="datasource")
                _check_tiers(given)
            row = self._store.rules.put(name, given, author=author, comment=comment)
            return JsonResponse(list(row.rules))  # as it is read, so that texts can be compared

        return await run_in_threadpool(store)

    def histories(self, request: Request) -> Response:
        """List changes of all rules, newest first."""
        return self._history(request, None)

    def history(self, request: Request) -> Response:
        """List changes of a datasource's rules, newest first."""
        return self._history(request, datasource_of(request, self._store.is_stored_name))

    def _history(self, request: Request, name: str | None) -> Response:
        rows = self._store.audit.list(
            name,
            type="rules",
            interval=query_interval(request),
            limit=query_count(request, "count", default=_HISTORY_MAX, most=_HISTORY_MAX),
        )
        return JsonResponse(
            [
                {
                    "key": row.key,
                    "type": row.type,
                    "payload": row.payload.get("rules", []),
                    **audit_to_json(row),
                }
                for row in rows
                if _may_read(request, row.key)
            ]
        )

    def _stored(self) -> dict[str, Sequence[object]]:
        return {name: list(row.rules) for name, row in self._store.rules.every().items()}


def _may_read(request: Request, name: str) -> bool:
    resource = NeedsDefaultable(Action.READ).resource({"datasource": name})
    return access_of(request).may(Action.READ, resource.kind, resource.name)


def _check_tiers(rules: Sequence[Mapping[str, object]]) -> None:
    """Check the tier names in Druid's rules; here all data is in one tier.

    Raises:
        InvalidRequest: A tier's name is invalid.
    """
    for number, rule in enumerate(rules):
        tiers = rule.get("tieredReplicants")
        for tier in tiers if isinstance(tiers, Mapping) else ():
            check_name(str(tier), TIER, place=f"[{number}].tieredReplicants")


def _load_all() -> Sequence[object]:
    return rules_to_json(_LOAD_ALL)

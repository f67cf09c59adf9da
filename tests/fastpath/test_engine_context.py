"""The engine that a request over HTTP chooses, and the answer that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.sql_request import SqlRequest
from tests.fastpath.test_fast_sql_service import SQL, Rig
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api


def asked(**context: object) -> tuple[str, bool]:
    query = SqlRequest({"query": SQL, "context": context}).query
    return query.engine, query.uses_cache


def test_the_context_chooses_the_engine_and_kept_answers() -> None:
    assert asked() == asked(engine=None, useResultLevelCache=None) == ("", True)
    assert asked(engine="auto", useResultLevelCache=True) == ("auto", True)
    assert asked(engine="fast", useResultLevelCache=False) == ("fast", False)
    assert asked(engine="spark", useResultLevelCache="false") == ("spark", False)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"engine": "duckdb"}, "unknown engine 'duckdb': use one of auto, spark, fast"),
        ({"engine": ["fast"]}, "unknown engine"),
        ({"engine": True}, "unknown engine"),
        ({"useResultLevelCache": 1}, "must be true or false"),
        ({"useResultLevelCache": "yes"}, "must be true or false"),
    ],
)
def test_other_values_are_refused_with_their_place(
    context: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        asked(**context)
    assert error.value.place == f"context.{next(iter(context))}"


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def api(rig: Rig) -> Iterator[Api]:
    routes = SqlRoutes(rig.service, MetricRegistry(), KeptEvents(), rig.clock).routes()
    with closing(Api(application(routes, access=with_token(None)))) as made:
        yield made


def test_the_answer_names_its_engine(rig: Rig, api: Api) -> None:
    for engine, shown, rows in (
        ("fast", "fast", [{"n": 0}]),
        ("auto", "fast", [{"n": 0}]),
        ("spark", "spark", [{"n": "of Spark"}]),
    ):
        body = {"query": SQL, "context": {"engine": engine}}
        answer = api.post("/druid/v2/sql", json=body)
        assert (answer.headers["X-Penstock-Engine"], answer.json()) == (shown, rows)
    rig.not_compiled = "join"
    answer = api.post("/druid/v2/sql", json={"query": SQL, "context": {"engine": "auto"}})
    assert answer.headers["X-Penstock-Engine"] == "spark"
    answer = api.post("/druid/v2/sql", json={"query": SQL, "context": {"engine": "fast"}})
    assert (answer.status_code, "X-Penstock-Engine" in answer.headers) == (400, False)
    assert answer.json()["errorMessage"] == (
        "context.engine: the fast engine does not answer this query (join): leave it out or set it"
        " to auto, and Spark answers"
    )

"""`/druid/v2/sql/statements`: queries that run on after their requests, and pages of their rows."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.metrics import MetricRegistry
from penstock.indexing.engine import EngineFailure
from penstock.services.api import sql_statements
from penstock.services.api.asgi import application
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.sql_statements import KEPT_S, STATEMENTS
from penstock.spark.sql.answer_files import AnswerFolder, used_bytes
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api

if TYPE_CHECKING:
    from penstock.spark.sql.fetcher import RowSource

ASYNC = {"executionMode": "ASYNC"}
ROWS = pa.table({"n": pa.array(range(7), pa.int64()), "t": pa.array([f"r{n}" for n in range(7)])})
ALL = [{"n": n, "t": f"r{n}"} for n in range(7)]


class HeldSql:
    """Answers once it is released."""

    def __init__(self, folder: Path) -> None:
        self.released = threading.Event()
        self.folder = AnswerFolder(folder)
        self.error: PenstockError | None = None
        self.in_files = False
        self.rows: pa.Table | HeldRows = ROWS
        self.engine = "spark"
        self.queries: list[SqlQuery] = []

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self.queries.append(query)
        yield RegisteredQuery(self.run, self._cancel)

    def _cancel(self) -> None:
        self.error = EngineFailure("the query did not end: it was cancelled")
        self.released.set()

    def run(self) -> SqlResult:
        assert self.released.wait(120)
        if self.error is not None:
            raise self.error
        rows = self.folder.write(self.rows) if self.in_files else self.rows
        types = ("bigint", "string")
        return SqlResult(cast("RowSource", rows), types, truncated=False, engine=self.engine)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, _query_id: str) -> bool:
        return False


class Rig:
    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", '[roles.other]\nallow = ["read topic:t"]\n')
        self.access, self.clock = self.kit.control, VirtualClock()
        self.sql = HeldSql(folder / "answers")
        routes = SqlRoutes(self.sql, MetricRegistry(), KeptEvents(), self.clock).routes()
        self.api = Api(application(routes, access=self.access))

    def __call__(
        self, method: str, path: str = "", who: str = "ann", role: str = "analyst", **more: Any
    ) -> httpx.Response:
        headers = as_principal(self.access, f"user:{who}", role)
        return self.api(method, f"{STATEMENTS}{path}", headers=headers, **more)

    def submit(self, who: str = "ann", **context: object) -> str:
        body = {"query": "SELECT 1", "context": {**ASYNC, **context}}
        answer = self("POST", who=who, json=body)
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert shown["state"] in {"ACCEPTED", "RUNNING"}
        assert shown["durationMs"] == -1
        return str(shown["queryId"])

    def state(self, query_id: str, who: str = "ann") -> dict[str, Any]:
        found: dict[str, Any] = self("GET", f"/{query_id}", who=who).json()
        return found

    def ended(self, query_id: str, who: str = "ann") -> dict[str, Any]:
        self.sql.released.set()
        until(lambda: self.state(query_id, who)["state"] in {"SUCCESS", "FAILED"})
        return self.state(query_id, who)

    def close(self) -> None:
        self.sql.released.set()
        self.api.close()
        self.sql.folder.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("in_files", [False, True])
def test_a_statement_runs_on_and_its_rows_come_in_pages(rig: Rig, in_files: bool) -> None:
    rig.sql.in_files, rig.sql.engine = in_files, "spark" if in_files else "fast"
    query_id = rig.submit(rowsPerPage=3)
    until(lambda: rig.state(query_id)["state"] == "RUNNING")
    refused = rig("GET", f"/{query_id}/results")
    assert refused.status_code == 400
    assert "is RUNNING" in refused.json()["errorMessage"]
    found = rig.ended(query_id)
    assert found["state"] == "SUCCESS"
    assert found["durationMs"] >= 0
    assert found["schema"] == [
        {"name": "n", "type": "BIGINT", "nativeType": "LONG"},
        {"name": "t", "type": "VARCHAR", "nativeType": "STRING"},
    ]
    result = found["result"]
    assert result["numTotalRows"] == 7
    assert [(one["id"], one["numRows"]) for one in result["pages"]] == [(0, 3), (1, 3), (2, 1)]
    assert result["sampleRecords"] == [[n, f"r{n}"] for n in range(7)]
    every = rig("GET", f"/{query_id}/results")
    assert (every.json(), every.headers["X-Penstock-Engine"]) == (ALL, rig.sql.engine)
    for page, rows in enumerate([ALL[:3], ALL[3:6], ALL[6:]]):
        # More than once: the rows are kept.
        for _ in range(2):
            assert rig("GET", f"/{query_id}/results?page={page}").json() == rows
    missing = rig("GET", f"/{query_id}/results?page=3")
    assert missing.status_code == 404
    assert "3 pages" in missing.json()["errorMessage"]
    lines = rig("GET", f"/{query_id}/results?page=2&resultFormat=arrayLines&filename=a.txt")
    assert lines.text == '[6,"r6"]\n\n'
    assert lines.headers["content-disposition"] == 'attachment; filename="a.txt"'
    assert rig("DELETE", f"/{query_id}").status_code == 200


@pytest.mark.parametrize(
    ("context", "says"),
    [
        ({}, "context.executionMode: must be ASYNC: set it"),
        ({"executionMode": "SYNC"}, "must be ASYNC, not 'SYNC'"),
        ({**ASYNC, "rowsPerPage": "x"}, "context.rowsPerPage"),
        ({**ASYNC, "rowsPerPage": -1}, "context.rowsPerPage"),
    ],
)
def test_a_bad_context_is_refused(rig: Rig, context: dict[str, object], says: str) -> None:
    answer = rig("POST", json={"query": "SELECT 1", "context": context})
    assert answer.status_code == 400
    assert says in answer.json()["errorMessage"]
    assert not rig.sql.queries


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("page=x", "page"),
        ("page=-1", "page"),
        ("resultFormat=xml", "resultFormat"),
        ("filename=a/b", "filename"),
        ("filename=a%22b", "filename"),
        ("filename=a%0ab", "filename"),
    ],
)
def test_a_bad_parameter_is_refused(rig: Rig, parameters: str, says: str) -> None:
    query_id = rig.submit()
    rig.ended(query_id)
    answer = rig("GET", f"/{query_id}/results?{parameters}")
    assert answer.status_code == 400
    assert says in json.dumps(answer.json())


def test_a_failure_is_kept_with_its_reason(rig: Rig) -> None:
    rig.sql.error = InvalidRequest("no such column")
    query_id = rig.submit()
    found = rig.ended(query_id)
    assert found["state"] == "FAILED"
    assert found["errorDetails"]["errorMessage"] == "no such column"
    assert "result" not in found
    answer = rig("GET", f"/{query_id}/results")
    assert answer.status_code == 404
    assert "no such column" in answer.json()["errorMessage"]
    # The reason may repeat a value of a row.
    for who, role in (("ann", "other"), ("root", "admin")):
        other = rig("GET", f"/{query_id}", who=who, role=role)
        assert other.json()["state"] == "FAILED"
        assert "no such column" not in other.text


def test_a_running_statement_can_be_cancelled(rig: Rig) -> None:
    query_id = rig.submit()
    until(lambda: rig.state(query_id)["state"] == "RUNNING")
    assert rig("DELETE", f"/{query_id}").status_code == 202
    found = rig.ended(query_id)
    assert found["state"] == "FAILED"
    assert "cancelled" in found["errorDetails"]["errorMessage"]


def test_statements_of_others_do_not_exist(rig: Rig) -> None:
    query_id = rig.submit()
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/results")):
        answer = rig(method, f"/{query_id}{path}", who="bob")
        assert answer.status_code == 404
        assert answer.json() == rig(method, f"/query-none{path}").json() or query_id in answer.text
    # An administrator sees and ends it, and does not get its rows.
    assert rig("GET", f"/{query_id}", who="root", role="admin").status_code == 200
    rig.ended(query_id)
    assert rig("GET", f"/{query_id}/results", who="root", role="admin").status_code == 404
    assert rig("GET", f"/{query_id}/results").json() == ALL
    shown = rig("GET", f"/{query_id}", who="root", role="admin").json()
    assert (shown["state"], shown["result"]["numTotalRows"]) == ("SUCCESS", 7)
    assert shown["result"]["sampleRecords"] == []


def test_rows_need_the_rights_with_which_they_were_read(rig: Rig) -> None:
    query_id = rig.submit()
    assert rig.ended(query_id)["result"]["sampleRecords"]
    state = rig("GET", f"/{query_id}", role="other").json()
    assert state["state"] == "SUCCESS"
    assert state["result"]["sampleRecords"] == []
    answer = rig("GET", f"/{query_id}/results", role="other")
    assert answer.status_code == 403
    assert "your rights have changed" in answer.json()["errorMessage"]


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ([300_000] * 10, 0),
        ([1_000, 300_000, 1], 1),
        ([12_000] * 10, 5),
        ([6_000] * 5, 5),
        ([1] * 30, 10),
    ],
)
def test_the_sample_is_bounded(rig: Rig, in_files: bool, lengths: list[int], count: int) -> None:
    rig.sql.in_files = in_files
    texts = ["x" * length for length in lengths]
    rig.sql.rows = pa.table({"n": pa.array(range(len(texts))), "t": pa.array(texts)})
    found = rig.ended(rig.submit())["result"]
    assert found["numTotalRows"] == len(texts)
    assert found["sampleRecords"] == [[n, text] for n, text in enumerate(texts[:count])]


def test_a_sample_is_bounded_as_it_is_written(rig: Rig) -> None:
    rig.sql.rows = pa.table({"t": pa.array(["\0" * 20_000])})  # each is six characters in JSON
    assert rig.ended(rig.submit())["result"]["sampleRecords"] == []


def test_an_answer_has_a_bounded_number_of_pages(rig: Rig) -> None:
    rig.sql.rows = pa.table({"n": pa.array(range(1_000_001), pa.int64())})
    query_id = rig.submit(rowsPerPage=1)
    found = rig.ended(query_id)["result"]
    pages = found["pages"]
    assert len(pages) == 1_000
    assert {one["numRows"] for one in pages[:-1]} == {1_001}
    assert sum(one["numRows"] for one in pages) == found["numTotalRows"]
    last = rig("GET", f"/{query_id}/results?page=999&resultFormat=arrayLines").text.split()
    assert (last[0], last[-1]) == ("[999999]", "[1000000]")
    assert rig("GET", f"/{query_id}/results?page=1000").status_code == 404


def test_the_rows_of_a_statement_are_deleted_without_a_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_statements, "EXPIRY_EVERY_S", 0.01)
    rig.sql.in_files = True
    rig.ended(rig.submit())
    assert used_bytes(rig.sql.folder.root)
    rig.clock.advance(KEPT_S)

    until(lambda: not used_bytes(rig.sql.folder.root))


@pytest.mark.parametrize("fails", [False, True])
def test_an_ended_statement_keeps_neither_its_text_nor_its_values(rig: Rig, fails: bool) -> None:
    class Held:
        """Stands for what was made of a statement when it failed."""

    alive: list[weakref.ref[object]] = []
    run = rig.sql.run

    def failing() -> SqlResult:
        tree = Held()
        alive.append(weakref.ref(tree))
        try:
            return run()
        except PenstockError as error:
            raise InvalidRequest("no such column") from error

    rig.sql.run = failing  # type: ignore[method-assign]
    if fails:
        rig.sql.error = EngineFailure("it failed")
    query_id = rig.submit()
    assert rig.ended(query_id)["state"] == ("FAILED" if fails else "SUCCESS")

    rig.sql.queries.clear()
    rig.sql.error = None

    def is_gone() -> bool:
        gc.collect()
        queries = [one for one in gc.get_objects() if isinstance(one, SqlQuery)]
        return alive[0]() is None and all(one.query_id != query_id for one in queries)

    until(is_gone)


def test_a_statement_expires_after_an_hour(rig: Rig) -> None:
    rig.sql.in_files = True
    query_id = rig.submit()
    rig.ended(query_id)
    rig.clock.advance(KEPT_S - 1)
    assert rig("GET", f"/{query_id}/results").status_code == 200
    rig.clock.advance(1)
    answer = rig("GET", f"/{query_id}/results")
    assert answer.status_code == 404
    assert "kept for an hour" in answer.json()["errorMessage"]
    until(lambda: not [*rig.sql.folder.root.glob("*/*/rows")])


def test_statements_have_bounds(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_statements, "ACTIVE_MAX", 2)
    monkeypatch.setattr(sql_statements, "ENDED_MAX", 1)
    first, second = rig.submit(), rig.submit()
    answer = rig("POST", json={"query": "SELECT 1", "context": ASYNC})
    assert answer.status_code == 429
    rig.sql.released.set()
    until(lambda: rig("GET", f"/{first}").status_code == 404)  # the older one of those that ended
    assert rig.ended(second)["state"] == "SUCCESS"
    third = rig.submit()
    assert rig.ended(third)["state"] == "SUCCESS"
    assert rig("GET", f"/{second}").status_code == 404


def test_one_principal_leaves_room_for_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_statements, "OWN_ACTIVE_MAX", 2)
    monkeypatch.setattr(sql_statements, "ACTIVE_MAX", 3)
    body = {"query": "SELECT 1", "context": ASYNC}
    rig.submit()
    rig.submit()
    refused = rig("POST", json=body)
    assert refused.status_code == 429
    assert "of yours" in refused.json()["errorMessage"]
    rig.submit("bob")
    refused = rig("POST", who="bob", json=body)
    assert refused.status_code == 429
    assert "of all principals" in refused.json()["errorMessage"]


@pytest.mark.parametrize("in_files", [False, True])
def test_one_principal_does_not_displace_the_answers_of_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, in_files: bool
) -> None:
    rig.sql.in_files = in_files
    of_bob = rig.submit("bob")
    size = rig.ended(of_bob, "bob")["result"]["totalSizeInBytes"]
    if in_files:
        monkeypatch.setattr(sql_statements, "FILES_BYTES_MAX", size * 3)
    else:
        monkeypatch.setattr(sql_statements, "ENDED_MAX", 3)
    of_ann = []
    for _ in range(6):
        of_ann.append(rig.submit())
        assert rig.ended(of_ann[-1])["state"] == "SUCCESS"
    assert rig("GET", f"/{of_bob}/results", who="bob").json() == ALL
    left = [one for one in of_ann if rig("GET", f"/{one}").status_code == 200]
    assert left == of_ann[-2:]


class HeldRows:
    """Rows of an answer, of which the last is read once it is released."""

    schema = ROWS.schema
    num_rows = ROWS.num_rows
    nbytes = ROWS.nbytes

    def __init__(self) -> None:
        self.is_held = False
        self.waits, self.released = threading.Event(), threading.Event()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from ROWS.slice(0, 6).to_batches()
        if self.is_held:
            self.waits.set()
            assert self.released.wait(120)
        yield from ROWS.slice(6).to_batches()


@pytest.mark.parametrize("is_old", [False, True])
def test_an_answer_is_kept_while_it_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    monkeypatch.setattr(sql_statements, "ENDED_MAX", 1)
    monkeypatch.setattr(sql_statements, "OWN_ACTIVE_MAX", 2)
    rig.sql.rows = held = HeldRows()
    first = rig.submit()
    rig.ended(first)
    held.is_held = True
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(rig, "GET", f"/{first}/results")
        assert held.waits.wait(120)
        if is_old:
            rig.clock.advance(KEPT_S)
        rig.sql.rows = ROWS
        second = rig.submit()
        assert rig.ended(second)["state"] == "SUCCESS"
        assert rig("GET", f"/{first}").status_code == 200
        rig.sql.released.clear()
        rig.submit()
        # A read counts as active: nobody keeps more and more answers by slow reads.
        refused = rig("POST", json={"query": "SELECT 1", "context": ASYNC})
        assert refused.status_code == 429
        held.released.set()
        assert read.result(120).json() == ALL
    until(lambda: rig("GET", f"/{first}").status_code == 404)
    assert rig("GET", f"/{second}/results").json() == ALL


def test_one_principal_reads_a_bounded_number_of_answers_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_statements, "OWN_READS_MAX", 1)
    rig.sql.rows = held = HeldRows()
    first = rig.submit()
    rig.ended(first)
    rig.sql.rows = ROWS
    of_bob = rig.submit("bob")
    rig.ended(of_bob, "bob")
    held.is_held = True
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(rig, "GET", f"/{first}/results")
        assert held.waits.wait(120)
        refused = rig("GET", f"/{first}/results?page=0")
        assert (refused.status_code, "answers of yours are read" in refused.text) == (429, True)
        assert rig("GET", f"/{of_bob}/results", who="bob").json() == ALL
        held.released.set()
        assert read.result(120).json() == ALL
    until(lambda: rig("GET", f"/{first}/results").status_code == 200)


def test_the_oldest_files_make_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.sql.in_files = True
    first = rig.submit()
    size = rig.ended(first)["result"]["totalSizeInBytes"]
    monkeypatch.setattr(sql_statements, "FILES_BYTES_MAX", size)
    second = rig.submit()
    assert rig.ended(second)["state"] == "SUCCESS"
    assert rig("GET", f"/{first}").status_code == 404
    assert rig("GET", f"/{second}/results").json() == ALL


@pytest.mark.parametrize(("method", "path"), [("PUT", ""), ("GET", "/query-1/stages")])
def test_no_other_path_is_recommended(rig: Rig, method: str, path: str) -> None:
    answer = rig(method, path)
    assert answer.status_code in {404, 405}
    assert "is not served here" in answer.text
    assert "/druid/v2/sql/task" not in answer.text

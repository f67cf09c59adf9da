"""The real `penstock up`: events in, SQL out, each process killed once, each event counted once.

The peons and Spark are killed while two more streams run (`kinds_kit`): the columns of one are
found, the other one rolls csv up.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from pydantic import JsonValue

from penstock.broker.broker_client import BrokerClient
from penstock.services.sql_client import ask
from tests.client.held_file_kit import held_file
from tests.kits.this_host_kit import LISTED
from tests.system.kinds_kit import (
    BY_HOUR,
    FINDS,
    FOUND,
    RATE_PER_S,
    ROLLS_UP,
    VISITS,
    finds,
    require_found,
    require_rolled_up,
    require_rows_of_pages,
    rows,
    strike_all,
    visits,
)
from tests.system.load_kit import PARTITIONS, WHOLE, Load, Rig, compaction, running_rig

pytestmark = pytest.mark.system

EVENTS = 5_000
BATCH = 250
SPEC = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "system",
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {"dimensions": [{"type": "long", "name": "seq"}, "kind", "pad"]},
            "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            "projections": [
                {
                    "type": "aggregate",
                    "name": "by kind",
                    "groupingColumns": ["kind"],
                    "aggregators": [{"type": "longSum", "name": "total", "fieldName": "seq"}],
                }
            ],
        },
        "ioConfig": {
            "topic": "system",
            "taskDuration": "PT10M",
            "period": "PT1S",
            "startDelay": "PT0S",
            "useEarliestOffset": True,
        },
        "tuningConfig": {"type": "penstock"},
    },
}
# 2013-01-01T00:00:00Z
START_MS = 1_356_998_400_000


def pad(seq: int) -> str:
    """Return text that does not pack: of small segments no projection is made."""
    return random.Random(seq).randbytes(300).hex()


def publish(rig: Rig, first: int, end: int) -> None:
    """Publish numbered events; a batch without an answer is sent again under its number."""
    with BrokerClient(rig.server.broker_http, timeout_s=15) as broker:
        for at in range(first, end, BATCH):
            batch = [
                json.dumps(
                    {"time": START_MS + seq, "seq": seq, "kind": "x", "pad": pad(seq)}
                ).encode()
                for seq in range(at, at + BATCH)
            ]

            def sent(batch: list[bytes] = batch, at: int = at) -> bool:
                number = at // BATCH + 1
                broker.publish("system", batch, partition=at // BATCH % 2, producer=("rig", number))
                return True

            rig.until("an answer", sent)


def counts(rig: Rig) -> list[object]:
    sql = 'SELECT count(*), count(DISTINCT seq), min(seq), max(seq) FROM "system"'
    return list(ask(rig.api, sql).rows[0])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # With the second JVM that users have by default.
    folder = tmp_path_factory.mktemp("up") / "data"
    variables = {"PENSTOCK_QUERY_MEMORY": "1g", "PENSTOCK_REACHABLE_HOSTS": LISTED}
    with running_rig(folder, variables) as made:
        with BrokerClient(made.server.broker_http) as broker:
            broker.create_topic("system", 2)
        made.api.post("/druid/indexer/v1/supervisor", SPEC)
        yield made


# Starts of Spark take most of the time here. So the Spark of queries is killed where a query has
# the router do that, and the other one, with the peons, in the test of several streams. The whole
# Penstock is killed in `test_moved_folder`, and with its own Spark in `test_indexing_kills`.
VICTIMS = ("broker", "overlord", "worker", "router")
# Spark computes it while it plans, and looks at no interruption meanwhile.
PLANS_FOR_HOURS = (
    "SELECT aggregate(sequence(1, n), 0L, (a, x) -> a + aggregate(sequence(1, n), 0L,"
    " (b, y) -> b + x * y % 7)) AS total FROM VALUES (40000) AS v(n)"
)
# One array of sixteen gigabytes, which no limit of Spark's own refuses.
TAKES_ALL_MEMORY = (
    "SELECT max(n) FROM (SELECT explode(sequence(1L, id + 2000000000)) AS n FROM range(1))"
)
PART = EVENTS // (len(VICTIMS) + 2) // BATCH * BATCH


def test_events_are_in_sql_soon(rig: Rig) -> None:
    publish(rig, 0, PART)
    rig.until("the first events", lambda: counts(rig) == [PART, PART, 0, PART - 1])
    require_same_answers(rig)


def require_same_answers(rig: Rig) -> None:
    """Insist that both engines give the same answers, whatever kinds of files there are."""
    for sql in (
        "SELECT count(*) AS many, count(DISTINCT seq) AS seqs, max(seq) AS top FROM system",
        "SELECT kind, count(*) AS many, sum(seq) AS total FROM SYSTEM GROUP BY kind ORDER BY kind",
        "SELECT __time, seq, kind FROM system WHERE seq >= ? ORDER BY seq DESC LIMIT 5",
    ):
        found = {}
        for engine in ("spark", "fast"):
            context = {"engine": engine, "noProjections": True}
            parameters = [7] if "?" in sql else []
            body = {"query": sql, "context": context, "parameters": parameters}
            answer = httpx.post(f"{rig.server.http}/druid/v2/sql", json=body, timeout=60)
            assert answer.headers.get("X-Penstock-Engine") == engine, answer.text
            found[engine] = answer.json()
        assert found["fast"] == found["spark"]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_queries_see_their_view_only_where_the_host_allows_one(rig: Rig) -> None:
    log = (rig.folder / "log" / "launcher.log").read_text()
    if "queries run isolated: without a network" not in log:
        pytest.skip(next((line for line in log.splitlines() if "view" in line), "no view"))
    pids = {one.pid for one in rig.processes() if one.name == "queries"}
    [pid] = [one for one in pids if int(status_of(one)["PPid"]) in pids]
    jvm, status = Path(f"/proc/{pid}"), status_of(pid)
    view = jvm / "root" / rig.folder.absolute().relative_to("/")
    seen = {path.name for path in view.iterdir()}
    assert seen == {"log", "run", "segments", "tasks", "tmp"}
    assert [path.name for path in (view / "run").iterdir()] == ["queries"]
    assert not (jvm / "root" / "etc" / "shadow").exists()
    interfaces = (jvm / "net" / "dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert (status["CapEff"], status["NoNewPrivs"]) == ("0" * 16, "1")
    assert int(status["Uid"].split()[0]) != 0


@pytest.mark.parametrize("name", VICTIMS)
def test_a_kill_loses_and_doubles_nothing(rig: Rig, name: str) -> None:
    first = PART * (VICTIMS.index(name) + 1)
    end = first + PART
    rig.until("a running peon", lambda: "peon" in {one.name for one in rig.processes()})
    publish(rig, first, first + BATCH)
    rig.kill(name)
    publish(rig, first + BATCH, end)
    rig.until(f"all events after the death of the {name}", lambda: counts(rig)[0] >= end)
    assert counts(rig) == [end, end, 0, end - 1]


def spark_answers(rig: Rig) -> bool:
    """Return whether Spark answers a query, which the fast engine does not."""
    return bool(ask(rig.api, "SELECT 1").rows)


def require_answers(rig: Rig) -> None:
    """Wait for the Spark of queries, which a test that failed may have left at its start."""
    rig.until("answers", lambda: spark_answers(rig))


def require_another_spark_of_queries(rig: Rig, sql: str, status: int, text: str) -> None:
    """Send a query that ends the Spark of queries, and wait until another one answers."""

    def pids() -> dict[str, int]:
        return {one.name: one.pid for one in rig.processes() if one.name in {"spark", "queries"}}

    rig.until("both Sparks, and an answer", lambda: len(pids()) == 2 and spark_answers(rig))
    before = pids()
    body = {"query": sql, "context": {"timeout": 2_000 if status == 500 else 110_000}}
    answer = httpx.post(f"{rig.server.http}/druid/v2/sql", json=body, timeout=120)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text
    old = before["queries"]
    rig.until("another Spark of queries", lambda: pids().get("queries", old) != old)
    require_answers(rig)
    assert pids()["spark"] == before["spark"]


def test_planning_that_ignores_its_end_costs_the_spark_of_queries_at_most(rig: Rig) -> None:
    first = PART * (len(VICTIMS) + 1)
    publish(rig, first, first + BATCH)
    require_another_spark_of_queries(rig, PLANS_FOR_HOURS, 500, "it took longer than 2000 ms")
    publish(rig, first + BATCH, EVENTS)
    rig.until("all events", lambda: counts(rig) == [EVENTS, EVENTS, 0, EVENTS - 1])


def test_a_query_that_takes_all_memory_ends_its_spark_twice_at_most_and_no_task(rig: Rig) -> None:
    """The task waits in the midst of its work while the Spark of queries ends and starts again."""
    lines = [json.dumps({"time": START_MS, "number": number}) for number in range(500)]
    with ThreadPoolExecutor(1) as pool, held_file("\n".join(lines).encode()) as file:
        task = pool.submit(rig.run_task, batch_task("held", file.url("a")))
        assert file.asked.wait(120)
        for _ in range(2):
            require_another_spark_of_queries(
                rig, TAKES_ALL_MEMORY, 503, "more memory than Spark has"
            )
        require_refusal(rig, TAKES_ALL_MEMORY)
        assert not task.done()
        file.may_go_on.set()
        task.result()
    assert list(ask(rig.api, 'SELECT count(*) FROM "held"').rows[0]) == [500]


def require_refusal(rig: Rig, sql: str) -> None:
    """Insist that a query that has ended two Sparks is not sent to a third one."""
    before = {one.pid for one in rig.processes()}
    answer = httpx.post(f"{rig.server.http}/druid/v2/sql", json={"query": sql}, timeout=120)
    assert answer.status_code == 400, answer.text
    assert "ended 2 times during this statement" in answer.text
    assert counts(rig) == [EVENTS, EVENTS, 0, EVENTS - 1]
    assert {one.pid for one in rig.processes() if one.name == "queries"} <= before


def batch_task(datasource: str, url: str) -> dict[str, JsonValue]:
    """Return a task that reads a file of JSON lines."""
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {"dimensions": [{"type": "long", "name": "number"}]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": {"type": "http", "uris": [url]},
                "inputFormat": {"type": "json"},
            },
        },
    }


def test_hand_off_publishes_segments_with_every_event(rig: Rig) -> None:
    base = "/druid/coordinator/v1/metadata/datasources/system"

    def published() -> bool:
        groups = {"taskGroupIds": [0]}
        rig.api.post("/druid/indexer/v1/supervisor/system/taskGroups/handoff", groups)
        found = rig.api.get(base)
        assert isinstance(found, dict)
        return sum(one["totalRows"] for one in found["segments"]) >= EVENTS

    rig.until("the publish", published)
    require_answers(rig)
    assert counts(rig) == [EVENTS, EVENTS, 0, EVENTS - 1]
    require_same_answers(rig)


def test_a_projection_answers_once_it_is_made(rig: Rig) -> None:
    asked = "SELECT kind, COUNT(*) AS many, SUM(seq) AS total FROM system GROUP BY kind"
    right = [{"kind": "x", "many": EVENTS, "total": EVENTS * (EVENTS - 1) // 2}]

    def answered(**context: object) -> str:
        """Return which projection answered, and rightly."""
        body = {"query": asked, "context": {"engine": "spark", **context}}
        answer = httpx.post(f"{rig.server.http}/druid/v2/sql", json=body, timeout=60)
        assert answer.json() == right
        return answer.headers.get("X-Penstock-Projection", "")

    require_answers(rig)
    rig.until("the projection", lambda: answered() == "by%20kind")
    assert answered(useProjection="by kind") == "by%20kind"
    assert answered(noProjections=True) == ""


def test_a_topic_that_is_made_again_is_read_from_its_start(rig: Rig) -> None:
    """It grows longer than the committed offsets of the old one before anybody looks."""
    require_answers(rig)
    (before, *_) = counts(rig)
    assert isinstance(before, int)
    with BrokerClient(rig.server.broker_http) as broker:
        broker.delete_topic("system")
        broker.create_topic("system", 2)
    end = EVENTS + before + 2 * BATCH
    publish(rig, EVENTS, end)
    total = before + end - EVENTS
    rig.until("the events of both", lambda: counts(rig)[0] >= total)
    assert counts(rig) == [total, total, 0, end - 1]


def test_three_streams_at_once_are_exact_whatever_is_killed(rig: Rig) -> None:
    """One of rows as they are, one whose columns are found, and one that rolls its rows up."""
    require_answers(rig)
    (before, *_, last) = counts(rig)
    assert isinstance(before, int)
    assert isinstance(last, int)
    with BrokerClient(rig.server.broker_http) as broker:
        for topic in (FOUND, VISITS):
            broker.create_topic(topic, PARTITIONS)
    for spec in (FINDS, ROLLS_UP):
        rig.api.post("/druid/indexer/v1/supervisor", spec)
    loads = [Load(rig, RATE_PER_S, FOUND, finds), Load(rig, RATE_PER_S, VISITS, visits)]
    first, end = last + 1, last + 1 + PART
    publish(rig, first, first + BATCH)
    for load in loads:
        load.start()
    try:
        strike_all(rig)
    finally:
        for load in loads:
            load.stop()
    publish(rig, first + BATCH, end)
    rig.until("all events", lambda: counts(rig)[0] >= before + PART)
    assert counts(rig) == [before + PART, before + PART, 0, end - 1]
    rig.api.post("/druid/indexer/v1/supervisor/system/terminate")
    found, visited = (load.acknowledged for load in loads)
    print(f"{found} and {visited} events, refused {[load.refusals for load in loads]}")
    sums = {FOUND: ("count(*)", found), VISITS: ("sum(n)", visited)}
    for topic, (count, wanted) in sums.items():
        query = f'SELECT {count} FROM "{topic}"'
        rig.until(f"all of {topic}", lambda q=query, n=wanted: rows(rig, q)[0][0] >= n, 300)
    require_found(rig, found)
    require_rolled_up(rig, visited)
    for topic in sums:
        rig.hand_over(topic)
    for topic in sums:
        rig.until(f"segments of {topic}", lambda t=topic: rig.is_published(t), 300)
    require_found(rig, found)
    require_rolled_up(rig, visited)
    rig.run_task(compaction(WHOLE, VISITS) | {"granularitySpec": BY_HOUR}, 300)
    require_rows_of_pages(rig, visited)


def test_a_second_one_on_the_folder_is_refused_with_the_first_ones_number(rig: Rig) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "up", "--data-dir", str(rig.folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"process {rig.server.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_refused(rig: Rig, tmp_path: Path) -> None:
    port = rig.server.http.rpartition(":")[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "up", "--data-dir", str(tmp_path / "other")),
            *("--http", f"127.0.0.1:{port}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_in_the_folder_is_open_to_other_users(rig: Rig) -> None:
    # While everything runs: Spark's JVM and Python workers have written, too.
    opened = []
    for folder, _, files in os.walk(rig.folder):  # it passes over what is deleted meanwhile
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            with suppress(FileNotFoundError):
                if path.lstat().st_mode & 0o077 and not path.is_symlink():
                    opened.append(path)
    assert opened == []

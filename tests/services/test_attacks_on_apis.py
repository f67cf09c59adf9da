"""Attacks by principals with few rights: each is refused, changes nothing, and learns nothing.

The attackers: somebody without rights, a publisher who wants to read, an analyst who wants other
datasources, a submitter of tasks who wants those of others, a writer who wants to read, and a
keeper of some datasources who wants to change others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

import pytest

from tests.services.attacks_kit import (
    DAY,
    MARK,
    VERSION,
    Attack,
    AttackedInstallation,
    C,
    P,
    segment,
)
from tests.services.overlord_kit import noop, supervisor_spec

OTHERS = ("payments", "clicks-secret")
SEGMENT = quote(str(segment("payments").id), safe="")
GET_DATASOURCE = (
    *(f"{C}/datasources/{{}}", f"{C}/datasources/{{}}/intervals", f"{C}/datasources/{{}}/segments"),
    f"{C}/datasources/{{}}/intervals/2024-01-01_2024-01-02",
    f"{C}/datasources/{{}}/segments/{SEGMENT}",
    *(f"{C}/datasources/{{}}/loadstatus", f"{C}/metadata/datasources/{{}}"),
    *(f"{C}/metadata/datasources/{{}}/segments", f"{C}/metadata/datasources/{{}}/segments?full"),
    f"{C}/metadata/datasources/{{}}/segments/{SEGMENT}",
    *(
        f"{C}/metadata/datasources/{{}}/unusedSegments",
        f"{C}/rules/{{}}",
        f"{C}/rules/{{}}/history",
    ),
    *("/penstock/v1/datasources/{}/timeline", "/penstock/v1/datasources/{}/files"),
    "/penstock/v1/datasources/{}/changes?revision=0",
    "/penstock/v1/datasources/{}/cursors",
    "/penstock/v1/datasources/{}/segments/timeline",
    *(f"{P}/compaction/config/datasources/{{}}", f"{P}/compaction/status/datasources/{{}}"),
    f"{P}/compaction/config/datasources/{{}}/history",
)
CHANGES: tuple[tuple[str, str, object], ...] = (
    ("POST", f"{P}/datasources/{{}}", None),
    ("DELETE", f"{P}/datasources/{{}}", None),
    ("POST", f"{P}/datasources/{{}}/markUsed", {"interval": DAY}),
    ("POST", f"{P}/datasources/{{}}/markUnused", {"interval": DAY}),
    ("POST", f"{P}/datasources/{{}}/markUnused", {"segmentIds": [str(segment("payments").id)]}),
    ("POST", f"{P}/datasources/{{}}/segments/{SEGMENT}", None),
    ("DELETE", f"{P}/datasources/{{}}/segments/{SEGMENT}", None),
    ("DELETE", f"{C}/datasources/{{}}/segments/{SEGMENT}", None),
    ("POST", f"{C}/datasources/{{}}/markUnused", {"interval": DAY}),
    ("DELETE", f"{C}/datasources/{{}}", None),
    ("DELETE", f"{P}/pendingSegments/{{}}?interval={DAY}", None),
    ("POST", f"{P}/compaction/config/datasources/{{}}", {"dataSource": "payments"}),
    ("DELETE", f"{P}/compaction/config/datasources/{{}}", None),
    ("POST", f"{C}/rules/{{}}", [{"type": "dropForever"}]),
    ("POST", f"{P}/datasources/{{}}/shutdownAllTasks", None),
)
SUPERVISOR_COMMANDS = (
    *("suspend", "resume", "terminate", "shutdown", "reset", "resetToLatestAndBackfill"),
    *("resetOffsets", "taskGroups/handoff"),
)
BODIES = {
    "resetOffsets": {"partitions": {"partitionOffsetMap": {"0": 1}}},
    "taskGroups/handoff": {"taskGroupIds": [0]},
}
REPLACES = "REPLACE INTO payments OVERWRITE ALL SELECT 1 AS __time PARTITIONED BY ALL"
READS_FILES = (
    """INSERT INTO clicks SELECT * FROM TABLE(EXTERN('{"type":"local","baseDir":"/etc","""
    """"filter":"*"}','{"type":"json"}','[{"name":"__time","type":"long"}]'))"""
    " PARTITIONED BY ALL"
)
INLINE = {"type": "inline", "data": '{"t": 1, "a": 2}'}
LOCAL = {"type": "local", "baseDir": "/etc", "filter": "*"}
HTTP = {"type": "http", "uris": ["http://169.254.169.254/latest"]}
STORED = {"type": "s3", "uris": ["s3://bucket/x"]}
FSSPEC = {"type": "fsspec", "uris": ["file:///etc/passwd"]}
DATABASE = {
    "type": "sql",
    "database": {
        "type": "postgresql",
        "connectorConfig": {"connectURI": "jdbc:postgresql://h/d", "user": "u", "password": "p"},
    },
    "sqls": ["SELECT 1"],
}


def druid(name: str) -> dict[str, object]:
    return {"type": "druid", "dataSource": name, "interval": DAY}


def by_segments(name: str) -> dict[str, object]:
    return {"type": "druid", "dataSource": name, "segments": [str(segment("payments").id)]}


def combined(*sources: object) -> dict[str, object]:
    return {"type": "combining", "delegates": list(sources)}


def index(datasource: str, source: Mapping[str, object]) -> dict[str, object]:
    parts = source.get("delegates", [source])
    assert isinstance(parts, list)
    has_types = all(one["type"] in {"druid", "sql"} for one in parts)
    return {
        "type": "index_parallel",
        "id": f"attack-{datasource}",
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
                "timestampSpec": {"column": "t", "format": "auto"},
                "dimensionsSpec": {"dimensions": ["a"]},
                "granularitySpec": {"segmentGranularity": "DAY"},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": source,
                **({} if has_types else {"inputFormat": {"type": "json"}}),
            },
        },
    }


def stream(datasource: str, supervisor: str = "", **io: object) -> dict[str, object]:
    spec = supervisor_spec(datasource, **({"id": supervisor} if supervisor else {}))
    spec["spec"]["ioConfig"].update(io)  # type: ignore[index,union-attr]
    return spec


def sql(statement: str, **more: object) -> dict[str, object]:
    return {"query": statement, **more}


def reading() -> Iterator[Attack]:
    for who in ("nothing", "publisher-clicks", "writer"):
        for path in GET_DATASOURCE:
            yield Attack(who, f"read {path}", "GET", path.format("clicks"))
    for name in OTHERS:
        for path in GET_DATASOURCE:
            yield Attack("analyst-clicks", f"{name} at {path}", "GET", path.format(name))
    # The segment of another datasource below one that may be read.
    for path in GET_DATASOURCE:
        if SEGMENT in path:
            yield Attack(
                "analyst-clicks",
                f"a foreign segment at {path}",
                "GET",
                path.format("clicks"),
                answers=(204, 404),
            )
    for spelling in ("clicks%2dsecret", "clicks-secre%74", "clicks-secret%20", "Clicks-secret"):
        for path in (GET_DATASOURCE[0], GET_DATASOURCE[-3], GET_DATASOURCE[-4]):
            yield Attack(
                "analyst-clicks",
                f"{spelling} at {path}",
                "GET",
                path.format(spelling),
                answers=(400, 403, 404),
            )
    for path in (
        "/penstock/v1/datasources/clicks/../payments/files",
        "/penstock/v1/datasources/clicks%2f..%2fpayments/files",
        "/penstock/v1/datasources/clicks/files/../../payments/files",
        f"{P}/../../../druid/indexer/v1/workers",
        f"{P}/%2e%2e/%2e%2e/druid-internal/v1/worker",
        f"{P}//workers",
        f"/{P}/workers",
        f"{P}/workers%3fx",
        f"{C}/datasources/clicks/../payments",
        f"{C}/datasources/clicks%2f..%2fpayments/segments",
    ):
        yield Attack("analyst-clicks", path, "GET", path, answers=(400, 403, 404, 405))


def others_tasks() -> Iterator[Attack]:
    for who in ("nothing", "publisher-clicks", "analyst-clicks", "submitter", "author"):
        for part in ("", "/status", "/why", "/log", "/reports"):
            yield Attack(who, f"task{part}", "GET", f"{P}/task/t-payments{part}")
        yield Attack(who, "stop a task", "POST", f"{P}/task/t-payments/shutdown")
        for part in ("", "/status", "/health", "/stats", "/history", "/parseErrors"):
            yield Attack(who, f"supervisor{part}", "GET", f"{P}/supervisor/payments{part}")
        for command in SUPERVISOR_COMMANDS:
            path = f"{P}/supervisor/payments/{command}"
            yield Attack(who, command, "POST", path, BODIES.get(command))
        for command in ("suspendAll", "resumeAll", "terminateAll"):
            yield Attack(who, command, "POST", f"{P}/supervisor/{command}")
    for spelling in ("t%2dpayments", "t-payment%73"):
        yield Attack("submitter", spelling, "GET", f"{P}/task/{spelling}/status")
    for spelling in ("t-clicks/../t-payments", "t-clicks%2f..%2ft-payments", "T-payments"):
        path = f"{P}/task/{spelling}/log"
        yield Attack("submitter", spelling, "GET", path, answers=(400, 403, 404))


def cluster() -> Iterator[Attack]:
    config = {"compactionTaskSlotRatio": 1.0, "maxCompactionTaskSlots": 1}
    for who in ("nothing", "submitter", "keeper", "author"):
        yield Attack(who, "worker settings", "POST", f"{P}/worker", {"type": "default"})
        yield Attack(who, "disable a worker", "POST", f"{P}/worker/w/disable")
        yield Attack(who, "list workers", "GET", f"{P}/workers")
        yield Attack(who, "compaction slots", "POST", f"{P}/compaction/config/cluster", config)
        yield Attack(who, "rules of all", "POST", f"{C}/rules/_default", [{"type": "dropForever"}])
        yield Attack(who, "status", "GET", "/status")
        yield Attack(who, "metrics", "GET", "/metrics")
        yield Attack(who, "settings", "GET", "/status/properties")
        for path in (f"{P}/lockedIntervals/v2", f"{P}/activeLocks"):
            for form in ("datasource", "dataSource"):
                body = [{form: "payments", "priority": 0}]
                yield Attack(who, f"{form} at {path}", "POST", path, body)
        yield Attack(who, "act as a task", "POST", f"{P}/action", {
            "task": "t-payments", "action": {"type": "lockList"},
        })  # fmt: skip


def changing() -> Iterator[Attack]:
    for who, names in (("keeper", OTHERS), ("submitter", ("clicks", "payments"))):
        for name in names:
            for method, path, body in CHANGES:
                yield Attack(who, f"{method} {path} of {name}", method, path.format(name), body)
    # Segments of another datasource, by the name of one's own.
    for method, path, body in CHANGES:
        if SEGMENT in path or (isinstance(body, dict) and "segmentIds" in body):
            at = path.format("clicks")
            yield Attack("keeper", f"{method} a foreign segment", method, at, body, answers=(404,))
    foreign = {"dataSource": "payments"}
    path = f"{P}/compaction/config/datasources/clicks"
    yield Attack("keeper", "compact another in the body", "POST", path, foreign, answers=(400,))


def submitting() -> Iterator[Attack]:
    tasks: list[tuple[str, dict[str, object]]] = [
        ("submitter", index("payments", INLINE)),
        ("submitter", index("clicks-secret", INLINE)),
        *(("submitter", index("clicks", one)) for one in (LOCAL, HTTP, STORED, FSSPEC, DATABASE)),
        *(("submitter", index("clicks", druid(name))) for name in OTHERS),
        *(("submitter", index("clicks", by_segments(name))) for name in OTHERS),
        ("submitter", index("clicks", combined(INLINE, LOCAL))),
        ("submitter", index("clicks", combined(INLINE, druid("payments")))),
        ("submitter", index("clicks", combined(druid("clicks"), druid("clicks-secret")))),
        ("submitter", noop("attack", "payments")),
        ("submitter", {**noop("attack", "payments"), "groupId": "t-clicks"}),
        ("submitter", {"type": "kill", "dataSource": "payments", "interval": DAY}),
        ("submitter", {"type": "kill", "dataSource": "clicks", "interval": DAY}),
        ("writer", {"type": "kill", "dataSource": "clicks", "interval": DAY}),
        ("writer", index("clicks", druid("clicks"))),
        ("writer", index("clicks", druid("payments"))),
        ("writer", index("clicks", LOCAL)),
        *((who, noop("attack", "clicks")) for who in ("analyst-clicks", "publisher-clicks")),
        *((who, noop("attack", "clicks")) for who in ("keeper", "author", "nothing")),
        (
            "submitter",
            {
                "type": "compact",
                "id": "attack",
                "dataSource": "payments",
                "ioConfig": {"inputSpec": {"type": "interval", "interval": DAY}},
            },
        ),
        (
            "submitter",
            index(
                "clicks",
                {**HTTP, "httpAuthenticationPassword": "secret://bank"}
                | {"httpAuthenticationUsername": "u"},
            ),
        ),
    ]
    for number, (who, task) in enumerate(tasks):
        yield Attack(who, f"task {number}: {task['type']}", "POST", f"{P}/task", task)
    supervisors: list[tuple[str, dict[str, object]]] = [
        ("submitter", stream("payments", topic="clicks")),
        ("submitter", stream("clicks-secret", topic="clicks")),
        ("submitter", stream("clicks", topic="payments")),
        ("submitter", stream("clicks", topic="clicks-secret")),
        ("submitter", stream("clicks", topic="clicks", deadLetterTopic="payments")),
        ("submitter", stream("clicks", topic="clicks", deadLetterTopic="clicks-secret")),
        ("submitter", stream("clicks-2", "payments", topic="clicks")),
        ("submitter", stream("clicks-2", "clicks-secret", topic="clicks")),
        ("submitter", {"type": "autocompact", "spec": {"dataSource": "payments"}}),
        ("submitter", {"type": "autocompact", "spec": {"dataSource": "clicks"}}),
        # It may write the datasource, but not read the topic of the supervisor that it edits.
        ("writer", stream("clicks", topic="clicks")),
        ("writer", stream("clicks", topic=f"clicks-{MARK}")),
        ("keeper", stream("clicks", topic="clicks")),
        ("analyst-clicks", stream("clicks", topic="clicks")),
        ("publisher-clicks", stream("clicks", topic="clicks")),
    ]
    for number, (who, spec) in enumerate(supervisors):
        path = f"{P}/supervisor"
        yield Attack(who, f"supervisor {number}: {spec['type']}", "POST", path, spec)
    for number, (who, statement) in enumerate(
        (
            ("submitter", "INSERT INTO payments SELECT 1 AS __time PARTITIONED BY ALL"),
            ("submitter", 'INSERT INTO "clicks-secret" SELECT 1 AS __time PARTITIONED BY ALL'),
            (
                "submitter",
                REPLACES,
            ),
            ("submitter", READS_FILES),
            ("analyst-clicks", "INSERT INTO clicks SELECT 1 AS __time PARTITIONED BY ALL"),
            ("author", "INSERT INTO clicks SELECT 1 AS __time PARTITIONED BY ALL"),
            ("publisher-clicks", "INSERT INTO clicks SELECT 1 AS __time PARTITIONED BY ALL"),
        )
    ):
        path = "/druid/v2/sql/task"
        yield Attack(who, f"statement {number}", "POST", path, sql(statement))
        with_context = sql(statement, context={"taskId": "t-payments", "priority": 10**6})
        yield Attack(who, f"statement {number} with a context", "POST", path, with_context,
                     answers=(400, 403))  # fmt: skip


ATTACKS = [*reading(), *others_tasks(), *cluster(), *changing(), *submitting()]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedInstallation]:
    made = AttackedInstallation(tmp_path_factory.mktemp("attacked"))
    yield made
    made.close()


def test_there_are_many_different_attacks() -> None:
    assert len(ATTACKS) > 300
    assert len({(one.who, one.method, one.path, str(one.body)) for one in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("tried", ATTACKS, ids=str)
def test_an_attack_is_refused_and_reveals_nothing(
    attacked: AttackedInstallation, tried: Attack
) -> None:
    answer = attacked.attack(tried)
    assert answer.status_code in tried.answers, answer.text
    known = f"{unquote(tried.path)}{tried.body}"
    for word in (MARK, VERSION, "flights", "Traceback"):
        assert word not in answer.text or word in known
    if "payments" not in known:
        assert "payments" not in answer.text


def test_no_attack_changes_anything(attacked: AttackedInstallation) -> None:
    before = attacked.state()
    for tried in ATTACKS:
        if tried.method != "GET":
            attacked.attack(tried)
    assert attacked.state() == before


def test_at_the_overlord_itself_nothing_is_different(attacked: AttackedInstallation) -> None:
    wrong = []
    for tried in ATTACKS:
        if tried.path.startswith(P) and ".." not in tried.path:
            found = attacked.attack(tried, attacked.overlord).status_code
            if found not in tried.answers:
                wrong.append((str(tried), found))
    assert wrong == []


LISTS = (
    *(f"{P}/tasks", f"{P}/runningTasks", f"{P}/waitingTasks", f"{P}/pendingTasks"),
    *(f"{P}/completeTasks", f"{P}/tasks?datasource=payments", f"{P}/supervisor"),
    *(f"{P}/supervisor?full", f"{P}/supervisor?system", f"{P}/supervisor?state"),
    *(f"{P}/supervisor/history", f"{P}/compaction/config/datasources"),
    *(f"{P}/compaction/status/datasources", f"{C}/rules", f"{C}/rules/history"),
    *(f"{C}/datasources", f"{C}/datasources?full", f"{C}/datasources?simple", f"{C}/loadstatus"),
    *(f"{C}/loadstatus?full", f"{C}/loadstatus?simple", f"{C}/metadata/datasources"),
    f"{C}/metadata/datasources?full",
)


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("who", ["nothing", "publisher-clicks", "analyst-clicks", "submitter"])
def test_lists_have_nothing_of_others(attacked: AttackedInstallation, who: str, path: str) -> None:
    everything = attacked.ask("admin", "GET", path)
    assert everything.status_code == 200
    answer = attacked.ask(who, "GET", path)
    assert answer.status_code == 200
    for word in OTHERS:
        assert word not in answer.text
    if who in {"nothing", "publisher-clicks"}:
        assert "clicks" not in answer.text
        assert MARK not in answer.text


@pytest.mark.parametrize("who", ["nothing", "submitter", "analyst-clicks"])
def test_what_others_have_looks_like_what_does_not_exist(
    attacked: AttackedInstallation, who: str
) -> None:
    for place in (
        *(f"{P}/task/{{}}/status", f"{P}/task/{{}}/log", f"{P}/supervisor/{{}}"),
        *(f"{C}/metadata/datasources/{{}}", "/penstock/v1/datasources/{}/files"),
        "/penstock/v1/datasources/{}/changes?revision=0",
        "/penstock/v1/datasources/{}/cursors",
    ):
        name = "t-payments" if "/task/" in place else "payments"
        real = attacked.ask(who, "GET", place.format(name))
        absent = attacked.ask(who, "GET", place.format("no-such"))
        assert real.status_code == absent.status_code == 403
        assert real.text.replace(name, "X") == absent.text.replace("no-such", "X")


@pytest.mark.parametrize("name", ["payments", "clicks-secret", "clicks"])
@pytest.mark.parametrize(
    "who", ["nothing", "publisher-clicks", "analyst-clicks", "author", "submitter"]
)
def test_only_who_may_write_has_expressions_checked_by_spark(
    attacked: AttackedInstallation, who: str, name: str
) -> None:
    expression = {"type": "expression", "name": "x", "expression": "upper(a)"}
    transform = {"transforms": [expression]}
    task = index(name, LOCAL)
    task["spec"]["dataSchema"]["transformSpec"] = transform  # type: ignore[index]
    supervisor = stream(name, topic="payments")
    supervisor["spec"]["dataSchema"]["transformSpec"] = transform  # type: ignore[index]
    config = {"dataSource": name, "transformSpec": {"filter": expression}}
    attacked.in_spark.clear()
    for path, body in (
        (f"{P}/task", task),
        (f"{P}/supervisor", supervisor),
        (f"{P}/compaction/config/datasources/{name}", config),
    ):
        answer = attacked.ask(who, "POST", path, json=body)
        assert answer.status_code == 403
    may_write = who == "submitter" and name == "clicks"
    assert len(attacked.in_spark) == (3 if may_write else 0)


def test_a_datasource_does_not_stand_for_the_cluster(attacked: AttackedInstallation) -> None:
    config = {"compactionTaskSlotRatio": 0.3, "maxCompactionTaskSlots": 3}
    path = f"{P}/compaction/config"
    assert attacked.ask("admin", "POST", f"{path}/cluster", json=config).status_code == 200
    history = f"{path}/datasources/_cluster/history"
    assert "0.3" in attacked.ask("operator", "GET", history).text
    assert attacked.ask("analyst", "GET", history).status_code == 403
    for method in ("GET", "POST"):
        more = {"json": [{"type": "dropForever"}]} if method == "POST" else {}
        for who in ("keeper", "writer"):
            assert attacked.ask(who, method, f"{C}/rules/_default", **more).status_code == 403


def test_nobody_takes_the_id_of_a_task_of_others(attacked: AttackedInstallation) -> None:
    """Its log and reports would belong to the datasource of the new task."""
    before = attacked.state()
    for taken in ("t-payments", "t-clicks-secret"):
        for task in (noop(taken, "clicks"), {**index("clicks", INLINE), "id": taken}):
            answer = attacked.ask("submitter", "POST", f"{P}/task", json=task)
            assert answer.status_code == 400
            assert MARK not in answer.text
        assert attacked.ask("submitter", "GET", f"{P}/task/{taken}/log").status_code == 403
    assert attacked.state() == before


@pytest.mark.parametrize(
    "task",
    [
        {"type": "index_penstock", "dataSource": "clicks", "topic": "payments"},
        *({"type": kind, "dataSource": "clicks"} for kind in ("move", "archive", "restore")),
        {"type": "index_kafka", "dataSource": "clicks"},
        {"type": "noop", "id": "../t-payments", "dataSource": "clicks"},
        {"type": "noop", "id": "a/../../access/process.key", "dataSource": "clicks"},
        {"type": "noop", "id": "worker.json", "dataSource": "clicks"},
        {"type": "noop", "id": ".ssh", "dataSource": "clicks"},
        {"type": "noop", "id": "a\nb", "dataSource": "clicks"},
        {"type": "noop", "dataSource": "clicks/../payments"},
        {"type": "noop", "dataSource": "clicks\u0000payments"},
        index("clicks", combined(combined(LOCAL))),
        index("clicks", {"type": "sqlite", "path": "/var/metadata.db"}),
        index("clicks", {"type": "s3", "uris": ["file:///etc/passwd"]}),
        index("clicks", {"type": "http", "uris": ["file:///etc/passwd"]}),
        index("clicks", {"type": "http", "uris": ["http://u:p@h/x"]}),
        index("clicks", {"type": "local", "baseDir": "../access", "filter": "*"}),
        {
            "type": "compact",
            "dataSource": "clicks",
            "ioConfig": {"inputSpec": {"type": "segments", "segments": []}},
        },
    ],
    ids=lambda task: str(task)[:80],
)
def test_what_no_task_may_be_is_refused_for_everyone(
    attacked: AttackedInstallation, task: Mapping[str, object]
) -> None:
    before = attacked.state()
    for who in ("submitter", "operator"):
        assert attacked.ask(who, "POST", f"{P}/task", json=task).status_code == 400
    assert attacked.state() == before


SETTINGS = [
    *("sasl.jaas.config", "sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab", "ssl.key.location"),
    *("ssl.keystore.location", "ssl.truststore.location", "ssl.ca.location", "config.providers"),
    *("plugin.library.paths", "ssl.engine.location", "ssl.providers", "statistics.interval.ms"),
    *("interceptor.classes", "metric.reporters", "security.providers", "debug", "log_level"),
    *("ssl.certificate.location", "sasl.oauthbearer.assertion.private.key.file"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_a_client_reads_files_or_runs_commands(
    attacked: AttackedInstallation, setting: str
) -> None:
    properties = {"bootstrap.servers": "h:9092", setting: "/etc/passwd"}
    spec = stream("clicks", topic="clicks", consumerProperties=properties)
    for kind in ("kafka", "penstock"):
        for who, statuses in (("submitter", {400, 403}), ("operator", {400})):
            answer = attacked.ask(who, "POST", f"{P}/supervisor", json={**spec, "type": kind})
            assert answer.status_code in statuses
            assert "/etc/passwd" not in answer.text


@pytest.mark.parametrize(
    "uri",
    [
        "jdbc:postgresql://h/d?socketFactory=org.springframework.context.support.X",
        *("jdbc:postgresql://h/d?sslfactory=x", "jdbc:postgresql://h/d?loggerFile=/tmp/x"),
        *("jdbc:postgresql://h/d?user=root", "jdbc:postgresql://u:p@h/d", "jdbc:postgresql:d"),
        *("jdbc:postgresql://h1,h2/d", "jdbc:postgresql:///d", "jdbc:postgresql://%2ftmp/d"),
        *("jdbc:mysql://h/d?allowLoadLocalInfile=true", "jdbc:h2:mem:;INIT=RUNSCRIPT FROM 'x'"),
        *("jdbc:sqlite:/var/metadata.db", "postgresql://h/d", "jdbc:postgresql://h/d?passfile=/x"),
        *("jdbc:postgresql://h/d?service=x", "jdbc:postgresql://h/d?options=-c%20role=x"),
        *("jdbc:postgresql://h/d?sslkey=/etc/x", "jdbc:postgresql://h/d?ssl=true&ssl=false"),
    ],
)
def test_the_address_of_a_database_does_nothing_else(
    attacked: AttackedInstallation, uri: str
) -> None:
    config = {"connectURI": uri, "user": "u", "password": "p"}
    database = {"type": "postgresql", "connectorConfig": config}
    task = index("clicks", {**DATABASE, "database": database})
    for who in ("submitter", "operator"):
        assert attacked.ask(who, "POST", f"{P}/task", json=task).status_code == 400

"""The commands of indexing, against a real overlord behind a router."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.cli.indexing import followed_tasks
from penstock.services.cli.spec_files import DocumentKind, errors_in
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import PublishRequest
from tests.harness.access_kit import with_token
from tests.services.overlord_kit import OverlordWorld, noop, ready, supervisor_spec
from tests.services.places_kit import FixedPlaces

DAY = "2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("cli")).start()
    servers = []

    def serve(app: object) -> HostPort:
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        servers.append(HttpServer(app, listener))  # type: ignore[arg-type]
        servers[-1].start()
        return HostPort("127.0.0.1", listener.getsockname()[1])

    place = serve(made.app)
    made.metadata.leases.renew("overlord", "o", host=place.host, port=place.port, ttl_ms=10**9)
    directory = LeaseDirectory(made.metadata.leases)
    parts = RouterParts(made.metadata, directory, place, FixedPlaces(place), ready, made.clock)
    made.url = serve(application(RouterRoutes(parts).routes(), access=with_token(None))).url  # type: ignore[attr-defined]
    for day in (1, 5):
        segment = Segment(
            datasource="web",
            interval=Interval.parse(f"2024-01-0{day}/2024-01-0{day + 1}"),
            version=f"2024-01-0{day}T00:00:00.000Z",
            load_spec={"type": "local", "path": "/p"},
            total_rows=3,
        )
        assert made.metadata.publish(PublishRequest(f"t{day}", "web", (segment.to_row(),))).ok
    yield made
    for server in servers:
        server.stop()
    made.close()


@pytest.fixture(autouse=True)
def at_the_server(world: OverlordWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", world.url)  # type: ignore[attr-defined]
    # Between two questions the world goes on instead.
    monkeypatch.setattr(followed_tasks.time, "sleep", lambda _s: world.clock.advance(0.25))


def written(folder: Path, content: object) -> str:
    path = folder / "input.json"
    path.write_text(json.dumps(content))
    return str(path)


def out(capsys: Capture, *arguments: str, code: int = exit_codes.OK) -> str:
    found = run(list(arguments))
    captured = capsys.readouterr()
    assert found == code, captured
    assert "Traceback" not in captured.err
    return captured.out if code == exit_codes.OK else captured.out + captured.err


def test_a_task_is_submitted_explained_and_followed(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    assert "submitted task a" in out(capsys, "task", "submit", written(tmp_path, noop("a", "cli")))
    world.runs("a")
    assert "waits for nothing" in out(capsys, "task", "why", "a")
    assert "RUNNING" in out(capsys, "task", "list", "--datasource", "cli")
    assert out(capsys, "task", "log", "a") == "the log of a\n"
    world.live["a"] = {
        "ingestionStatsAndErrors": {
            "payload": {
                "ingestionState": "BUILD_SEGMENTS",
                "rowStats": {"buildSegments": {"processed": 12_345, "unparseable": 2}},
                "unparseableEvents": {"buildSegments": []},
            }
        }
    }
    said = out(capsys, "task", "report", "a")
    assert "12,345" in said
    assert "maxSavedParseExceptions" in said
    samples = {"buildSegments": [{"input": "zürich", "details": "no time"}]}
    world.live["a"] = {
        "ingestionStatsAndErrors": {
            "payload": {"ingestionState": "BUILD_SEGMENTS", "unparseableEvents": samples}
        }
    }
    said = out(capsys, "task", "report", "a")
    assert 'unparseable {"input": "zürich", "details": "no time"}' in said
    assert "maxSavedParseExceptions" not in said
    lost: dict[str, object] = {
        "failedTries": 3,
        "lastFailure": "Spark was lost: OutOfMemoryError\n  at work",
    }
    world.live["a"] = {"ingestionStatsAndErrors": {"payload": lost}}
    failed = "3 tries of its work failed, last reason: Spark was lost: OutOfMemoryError"
    assert f"it is running; {failed}\n" in out(capsys, "task", "why", "a")
    said = out(capsys, "task", "status", "a")
    assert f"{failed}\n" in said
    assert "duration" not in said  # -1 in the API
    assert "progress" not in said
    lost |= {"ingestionState": "BUILD_SEGMENTS", "partsDone": 3, "partsTotal": 1_200}
    said = out(capsys, "task", "status", "a")
    assert "progress            build segments, 3 of 1,200 parts\n" in said
    lost |= {"rowsRead": 4_711, "rowsWritten": 12, "filesRead": 1, "filesTotal": 7}
    said = out(capsys, "task", "status", "a")
    rows = "4,711 rows read, 12 written, 3 of 1,200 parts, 1 of 7 files read"
    assert f"progress            build segments, {rows}\n" in said
    lost |= {"failedTriesMax": 20, "nextTry": "2026-11-22T16:00:00.000Z"}
    failed = "3 of 20 tries of its work failed (next attempt at 2026-11-22T16:00:00.000Z), last"
    assert failed in out(capsys, "task", "status", "a")
    said = out(capsys, "task", "why", "a")
    assert said.startswith("waits for retry: its next attempt of ")
    assert said.endswith(
        "3 failed; with 20 it fails; last reason: Spark was lost: OutOfMemoryError\n"
    )
    world.end("a")
    assert "nothing; it succeeded at 20" in out(capsys, "task", "why", "a")
    assert "task a has ended already: it succeeded at 20" in out(capsys, "task", "stop", "a")
    assert "task a succeeded" in out(capsys, "task", "wait", "a")
    waited = json.loads(out(capsys, "task", "wait", "a", "--json"))
    assert waited["statusCode"] == "SUCCESS"
    said = out(capsys, "task", "status", "a")
    assert "SUCCESS" in said
    assert "{" not in said
    assert "1970" not in said
    out(capsys, "task", "submit", written(tmp_path, noop("b", "cli")))
    world.runs("b")
    assert "asked task b to stop" in out(capsys, "task", "shutdown", "b")
    assert "failed: shut down by a user" in out(capsys, "task", "wait", "b", code=exit_codes.FAILED)
    status = json.loads(out(capsys, "task", "status", "b", "--json"))["status"]
    ended = format_time(parse_time(status["createdTime"]) + status["duration"])
    told = f"it failed at {ended}: shut down by a user (its log: penstock task log b)\n"
    assert f"waits for nothing; {told}" in out(capsys, "task", "why", "b")
    assert f"task b has ended already: {told}" in out(capsys, "task", "shutdown", "b")
    assert "\nb: shut down by a user" in out(capsys, "task", "list", "--datasource", "cli")


def test_who_waits_for_a_task_is_told_once_that_it_tries_again(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    asked: list[int] = []

    class Failing(dict[str, object]):
        """The report of a task that fails with each look, and then is ended."""

        def __getitem__(self, _task: str) -> object:
            asked.append(1)
            if len(asked) == 5:
                world.end("c")
            lost = {"failedTries": len(asked), "lastFailure": "the database db:1/x is silent"}
            return {"ingestionStatsAndErrors": {"payload": lost}}

    out(capsys, "task", "submit", written(tmp_path, noop("c", "cli")))
    world.runs("c")
    world.live = Failing(c=None)
    assert run(["task", "wait", "c"]) == exit_codes.OK
    told = capsys.readouterr().err
    assert told.count("task c tries again: the database db:1/x is silent\n") == 1


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    wrong = written(tmp_path, {"type": "kil", "dataSource": "d"})
    for arguments, says, code in (
        (["task", "submit", wrong], "kill", exit_codes.USAGE),
        (["task", "why", "nobody"], "no task 'nobody'", exit_codes.FAILED),
        (["task", "report", "nobody"], "no task 'nobody'", exit_codes.FAILED),
        (["task", "wait", "nobody"], "nobody", exit_codes.FAILED),
        (["supervisor", "lag", "nobody"], "nobody", exit_codes.FAILED),
        (["worker", "disable", "x:1"], "no worker", exit_codes.FAILED),
        (["rule", "set", "web", wrong], "list", exit_codes.USAGE),
        (["compaction", "status", "nobody"], "nobody", exit_codes.FAILED),
        (["segment", "timeline", "nobody"], "nobody", exit_codes.FAILED),
        (["segment", "mark-used", "web"], "--interval", exit_codes.USAGE),
        (["segment", "kill", "web", "--interval", DAY], "--yes", exit_codes.USAGE),
    ):
        assert says in out(capsys, *arguments, code=code)


@pytest.mark.parametrize(
    "command",
    [
        *(("task", one) for one in ("status", "why", "log", "report")),
        *(("supervisor", one) for one in ("status", "history", "suspend", "stats")),
        *(("compaction", "show"), ("rule", "history"), ("segment", "timeline")),
        ("task", "shutdown"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["a/b", ""])
def test_a_name_that_no_path_can_have_is_refused_by_the_command(
    capsys: Capture, command: tuple[str, ...], name: str
) -> None:
    said = " ".join(out(capsys, *command, "--", name, code=exit_codes.USAGE).split())
    assert f"{name!r} is not a valid name: a name is not empty and has no '/'" in said


@pytest.mark.parametrize("kind", ["task", "supervisor"])
def test_an_empty_spec_is_refused_with_the_name_of_its_file(
    tmp_path: Path, capsys: Capture, kind: str
) -> None:
    file = tmp_path / "empty.json"
    file.write_text("\n")
    said = out(capsys, kind, "submit", str(file), code=exit_codes.USAGE)
    assert f"{file}: is empty: write a spec in JSON or YAML" in " ".join(said.split())


BROKEN = {
    '{\n "a": 1,\n nonsense}': ":3:2: is not JSON: Expecting property name enclosed in double",
    "[" * 100_000: ": nests objects or lists too deeply: reduce the nesting",
}


@pytest.mark.parametrize(
    "command",
    [("task", "submit"), ("supervisor", "submit"), ("compaction", "set"), ("rule", "set", "web")],
    ids=" ".join,
)
def test_broken_json_is_named_with_its_file_and_line(
    tmp_path: Path, capsys: Capture, command: tuple[str, ...]
) -> None:
    file = tmp_path / "broken.json"
    for text, why in BROKEN.items():
        file.write_text(text)
        said = out(capsys, *command, str(file), code=exit_codes.USAGE)
        assert f"{file}{why}" in " ".join(said.split()), said
    # Without a file, the server reports the place in the spec.
    file.write_text('{"dataSource": "web", "taskPriority": ' + "9" * 5_000 + "}")
    said = out(capsys, *command, str(file), code=exit_codes.USAGE)
    assert "64 bits" in said
    assert "9" * 100 not in said


@pytest.mark.parametrize("kind", ["task", "supervisor"])
def test_broken_yaml_is_named_with_its_file_and_line(
    tmp_path: Path, capsys: Capture, kind: str
) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("type: kill\ndataSource: [web\ninterval: x\n")
    said = " ".join(out(capsys, kind, "submit", str(file), code=exit_codes.USAGE).split())
    assert f"penstock: {file}:3:9: invalid YAML: did not find expected" in said, said


FLOW = "name: f\nprocessors:\n  Log: {type: LogAttribute, auto_terminated: success}\n"


def test_a_file_of_another_kind_is_told_with_its_command(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "given"
    supervisor = json.dumps(supervisor_spec())
    for kind, text, said in (
        (
            "supervisor",
            FLOW,
            "a flow, not the spec of a supervisor: submit it with penstock flow apply",
        ),
        ("task", FLOW, "a flow, not a task: submit it with penstock flow apply"),
        (
            "task",
            supervisor,
            "the spec of a supervisor, not a task: submit it with penstock supervisor",
        ),
        (
            "supervisor",
            "type: kill\n",
            "a task, not the spec of a supervisor: submit it with penstock",
        ),
    ):
        file.write_text(text)
        told = " ".join(out(capsys, kind, "submit", str(file), code=exit_codes.USAGE).split())
        assert f"penstock: {file}: is {said}" in told
        assert told.endswith(str(file))


def test_mistakes_of_a_spec_have_their_lines(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        "type: kafka\nspec:\n  dataSchema:\n    dataSource: d\n    timestampSpec: {colum: time}\n"
        "  ioConfig:\n    consumerProperties:\n      bootstrap.servers: [1]\n"
    )
    shown = out(capsys, "supervisor", "submit", str(file), code=exit_codes.USAGE)
    told = " ".join(shown.split())
    for place in (
        f"{file}:5:21: spec.dataSchema.timestampSpec.colum: unknown field",
        f"{file}:3:3: spec.dataSchema.dimensionsSpec: is required",
        f"{file}:8:7: spec.ioConfig.consumerProperties.bootstrap.servers",
    ):
        assert place in told, shown
    file.write_text('{"type": "kill",\n "dataSource": 5, "interval": "2024-01-01/2024-01-02"}')
    told = " ".join(out(capsys, "task", "submit", str(file), code=exit_codes.USAGE).split())
    assert f"penstock: {file}:2:2: dataSource: must be text" in told


def test_only_fields_of_a_file_have_places_in_errors() -> None:
    spec = b"# a task\ntype: kill\ndataSource: d\n"
    text = (
        "3 mistakes in the spec:\n  interval: is required\n  dataSource.x: is odd\n  Hint: none\n"
        "Suggestion: one"
    )
    with pytest.raises(InvalidRequest) as caught, errors_in(Path("s"), spec, DocumentKind.TASK):
        raise InvalidRequest(text)
    assert str(caught.value) == (
        "3 mistakes in the spec:\n  s:2:1: interval: is required\n  s:3:1: dataSource.x: is odd\n"
        "  Hint: none\nSuggestion: one"
    )


@pytest.mark.parametrize("text", ['{"type":\t"nonsense"}', "type: nonsense"])
def test_a_byte_order_mark_is_no_part_of_a_spec(tmp_path: Path, capsys: Capture, text: str) -> None:
    file = tmp_path / "spec"
    file.write_text(text, encoding="utf-8-sig")
    said = out(capsys, "task", "submit", str(file), code=exit_codes.USAGE)
    assert "nonsense" in said


def test_a_lag_in_time_is_told_where_it_is_wanted(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    # As it is written in a file.
    spec = json.dumps(supervisor_spec()).replace('"topic"', '"emitTimeLagMetrics": true, "topic"')
    out(capsys, "supervisor", "submit", written(tmp_path, json.loads(spec)))
    path = "/druid/indexer/v1/supervisor/flights/status"
    world.until(lambda: "maxLagMillis" in world.api.get(path).json()["payload"])
    assert "12 messages behind, 3.0 s" in out(capsys, "supervisor", "lag", "flights")


def test_supervisors_have_a_lag_and_a_history(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    out(capsys, "supervisor", "submit", written(tmp_path, supervisor_spec()))
    path = "/druid/indexer/v1/supervisor/flights/status"
    world.until(lambda: bool(world.api.get(path).json()["payload"]["latestOffsets"]))
    said = out(capsys, "supervisor", "lag", "flights")
    assert "messages behind" in said
    columns = ["partition", "latest", "read", "persisted", "committed", "lag"]
    assert said.split()[:6] == columns
    out(capsys, "supervisor", "suspend", "flights")
    assert "suspended" in out(capsys, "supervisor", "history", "flights")
    out(capsys, "supervisor", "terminate", "flights")
    assert "terminated" in out(capsys, "supervisor", "history", "flights", "--max", "1")


def test_chosen_offsets_are_read_again(world: OverlordWorld, capsys: Capture) -> None:
    spec = supervisor_spec("again", context={"useConcurrentLocks": True})
    assert world.api.post("/druid/indexer/v1/supervisor", json=spec).status_code == 200
    own = "/penstock/v1/supervisors/again/lag"
    world.until(lambda: bool(world.api.get(own).json()["times"]))
    ranges = ["--range", "0=1:4", "--range", "1=2:3"]
    made = out(capsys, "supervisor", "backfill", "again", "--tasks", "2", *ranges)
    assert "supervisor again continues where it is" in made
    io = world.api.get(f"/druid/indexer/v1/supervisor/{made.split()[0]}").json()["spec"]["ioConfig"]
    assert io["taskCount"] == 2
    assert io["boundedStreamConfig"]["endSequenceNumbers"] == {"0": 4, "1": 3}
    for wrong in ("0=1", "0=1:", "a=1:2"):
        refused = ("supervisor", "backfill", "again", "--range", wrong)
        assert "PARTITION=START:END" in out(capsys, *refused, code=exit_codes.USAGE)
    for name in ("again", made.split()[0]):
        world.api.post(f"/druid/indexer/v1/supervisor/{name}/terminate")


def test_a_partition_number_is_shown_as_it_is_typed(world: OverlordWorld, capsys: Capture) -> None:
    segment = Segment(
        datasource="many",
        interval=Interval.parse("2024-01-01/2024-01-02"),
        version="2024-01-01T00:00:00.000Z",
        load_spec={"type": "local", "path": "/p"},
        shard_spec=ShardSpec(partition_number=12345),
        total_rows=67890,
    )
    assert world.metadata.publish(PublishRequest("m", "many", (segment.to_row(),))).ok
    row = out(capsys, "segment", "timeline", "many").splitlines()[2].split()
    assert row[2:4] == ["12345", "67,890"]


def test_segments_are_shown_taken_out_and_killed(capsys: Capture) -> None:
    assert DAY in out(capsys, "segment", "timeline", "web")
    assert len(json.loads(out(capsys, "segment", "list", "web", "--json"))) == 2
    marked = ("segment", "mark-unused", "web", "--interval", DAY, "--version", "v9")
    said = out(capsys, *marked, code=exit_codes.FAILED)
    assert f"no used segment of version v9 within {DAY}; versions of its used segments" in said
    assert said.endswith("there: 2024-01-01T00:00:00.000Z\n")
    taken = out(capsys, "segment", "mark-unused", "web", "--interval", DAY)
    assert taken == "segments marked unused: 1\n"
    assert DAY not in out(capsys, "segment", "timeline", "web")
    assert "2024-01-01" in out(capsys, "segment", "list", "web", "--unused")
    back = out(capsys, "segment", "mark-used", "web", "--interval", DAY)
    assert back == "segments marked used: 1\n"
    assert out(capsys, "segment", "list", "web", "--unused") == "web has no unused segments\n"
    assert "there is no datasource 'wbe'" in out(capsys, "segment", "list", "wbe", "--unused")
    killed = out(capsys, "segment", "kill", "web", "--interval", "2000/2001", "--yes")
    assert "submitted task" in killed
    out(capsys, "task", "shutdown", killed.split()[2])


def test_rules_are_set_and_their_history_kept(tmp_path: Path, capsys: Capture) -> None:
    rules = [{"type": "loadByPeriod", "period": "P1M"}, {"type": "dropForever"}]
    said = out(capsys, "rule", "set", "web", written(tmp_path, rules), "--comment", "shorter")
    assert "2 rules" in said
    one = written(tmp_path, rules[1:])
    assert run(["rule", "set", "bus", one]) == exit_codes.OK
    told = capsys.readouterr()
    assert told.out == "bus has 1 rule of its own\n"
    assert "there is no datasource bus" in told.err
    said = out(capsys, "rule", "list", "web")
    assert "P1M" in said
    assert said.splitlines()[-1].split() == ["_default", "loadForever"]
    assert "shorter" in out(capsys, "rule", "history", "web")
    assert "loadForever" in out(capsys, "rule", "list")
    drop = written(tmp_path, [{"type": "dropForever"}])
    dropped = out(capsys, "rule", "preview", "web", drop)
    assert "would be dropped" in dropped
    shown = json.loads(out(capsys, "rule", "preview", "web", drop, "--json"))["intervals"][0]
    assert shown["datasource"] == "web"
    keep = written(tmp_path, [{"type": "loadForever"}])
    assert "nothing would be dropped" in out(capsys, "rule", "preview", "web", keep)


def test_compaction_is_configured_and_run(tmp_path: Path, capsys: Capture) -> None:
    config = {"dataSource": "web", "skipOffsetFromLatest": "PT1H"}
    assert run(["compaction", "set", written(tmp_path, config)]) == exit_codes.OK
    said = capsys.readouterr()
    assert "compaction of web is configured" in said.out
    assert said.err == ""
    (status,) = json.loads(out(capsys, "compaction", "status", "web", "--json"))
    assert status["due"] == [DAY]
    assert "web" in out(capsys, "compaction", "status")
    (started,) = json.loads(out(capsys, "compaction", "run", "web", "--json"))
    out(capsys, "task", "shutdown", started)
    said = out(capsys, "compaction", "run", "web", "--interval", DAY)
    out(capsys, "task", "shutdown", said.split()[1])
    shown = json.loads(out(capsys, "compaction", "show", "web"))
    assert shown.items() >= config.items()
    assert "web is no longer compacted" in out(capsys, "compaction", "remove", "web")
    for command in ("show", "remove"):
        said = out(capsys, "compaction", command, "web", code=exit_codes.FAILED)
        assert "web has no compaction configuration" in said


def test_a_supervisor_that_compacts_is_shown(tmp_path: Path, capsys: Capture) -> None:
    spec = {"type": "autocompact", "spec": {"dataSource": "web", "skipOffsetFromLatest": "PT1H"}}
    name = "autocompact__web"
    assert name in out(capsys, "supervisor", "submit", written(tmp_path, spec))
    said = out(capsys, "supervisor", "status", name)
    assert said.split() == (
        f"supervisor {name} datasource web state RUNNING awaiting 1 compacted 0 skipped 1".split()
    )
    assert "RUNNING" in out(capsys, "supervisor", "list")
    other = {**spec, "spec": {"dataSource": "wbe"}}
    assert run(["supervisor", "submit", written(tmp_path, other)]) == exit_codes.OK
    assert "is no datasource wbe" in capsys.readouterr().err
    out(capsys, "compaction", "remove", "wbe")
    assert "RUNNING" in out(capsys, "compaction", "status", "web")
    out(capsys, "supervisor", "suspend", name)
    assert "SUSPENDED" in out(capsys, "compaction", "status", "web")
    assert "suspended" in out(capsys, "supervisor", "history", name)
    for asked in (["reset", name, "-y"], ["lag", name], ["handoff", name]):
        assert "reads no stream" in out(capsys, "supervisor", *asked, code=exit_codes.USAGE)
    out(capsys, "compaction", "remove", "web")
    assert name not in out(capsys, "supervisor", "list")


def test_the_end_of_a_task_says_what_became_of_its_rows(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    for task, counts, says in (
        ("all", {"processed": 1_200, "thrownAway": 0, "unparseable": 0}, ": 1,200 rows"),
        ("some", {"processed": 7, "thrownAway": 3, "unparseable": 2}, ": 7 rows, 3 thrown away, "),
        ("one", {"processed": 1, "thrownAway": 0, "unparseable": 0}, ": 1 row\n"),
        ("none", {"processed": 0, "thrownAway": 4, "unparseable": 0}, ": 0 rows, 4 thrown away"),
        ("rolled", {"processed": 9, "thrownAway": 1}, ": 9 rows rolled up into 4, 1 thrown away"),
        ("no", {"processed": 0, "thrownAway": 0, "unparseable": 0}, ": 0 rows\n"),
    ):
        out(capsys, "task", "submit", written(tmp_path, noop(f"rows-{task}", "cli")))
        world.runs(f"rows-{task}")
        rows = 4 if task == "rolled" else counts["processed"]
        # Of a release that tells of phases in another way, nothing is counted of those.
        payload = {"rowStats": {"buildSegments": counts, "others": 5}, "rowsWritten": rows}
        report = {"ingestionStatsAndErrors": {"payload": payload}}
        place = Path(world.peons[f"rows-{task}"].folder) / "attempt" / "1" / "report.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(report))
        world.end(f"rows-{task}")
        said = out(capsys, "task", "wait", f"rows-{task}")
        assert f"task rows-{task} succeeded{says}" in said
        assert ("2 unparseable (see penstock task report rows-some)" in said) == (task == "some")


def test_the_end_of_a_task_says_what_it_took_away(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    """Who replaced a month by nothing, by a slip of the input, read `succeeded` and no more."""
    stats = {"rowStats": {"buildSegments": {"processed": 0}}, "rowsWritten": 0}
    days = [f"2013-01-0{day}/2013-01-0{day + 1}" for day in (1, 3, 5)]
    gone = {**stats, "intervalsEmptied": days[:1], "intervalsEmptiedCount": 1}
    many = {**stats, "intervalsEmptied": days, "intervalsEmptiedCount": 4}
    for task, payload, says in (
        ("gone", gone, f": 0 rows; the segments of {days[0]} are hidden and have no new rows\n"),
        ("many", many, f"{days[2]} and 1 interval more are hidden and have no new rows\n"),
        ("kill", {"segmentsKilled": 1, "rowStats": {}}, ": 1 segment removed\n"),
        ("files", {"segmentsKilled": 2, "filesDeleted": 1}, ": 2 segments removed, and 1 file of"),
        ("killed", {"segmentsKilled": 0, "filesDeleted": 0}, ": 0 segments removed\n"),
        ("sleep", {"rowStats": {}}, " succeeded\n"),
    ):
        name = f"away-{task}"
        out(capsys, "task", "submit", written(tmp_path, noop(name, "cli")))
        world.runs(name)
        place = Path(world.peons[name].folder) / "attempt" / "1" / "report.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"ingestionStatsAndErrors": {"payload": payload}}))
        world.end(name)
        assert says in out(capsys, "task", "wait", name)
        said = out(capsys, "task", "report", name)
        # What removes segments reads no rows, ever.
        assert ("no rows were read" in said) == (task == "sleep")
        assert ("removed" in said) == ("segmentsKilled" in payload)
        assert ("are hidden and have no new rows" in said) == ("intervalsEmptied" in payload)


def test_supervisors_that_take_all_slots_are_told(
    world: OverlordWorld, tmp_path: Path, capsys: Capture
) -> None:
    out(capsys, "supervisor", "submit", written(tmp_path, supervisor_spec("wide1")))
    assert run(["supervisor", "submit", written(tmp_path, supervisor_spec("wide2"))]) == 0
    assert capsys.readouterr().err.startswith("penstock: 2 supervisors need 2 slots")
    assert "slots       2 supervisors need 2 slots" in out(capsys, "supervisor", "status", "wide1")
    assert run(["supervisor", "list"]) == exit_codes.OK
    told = capsys.readouterr()
    assert "wide2" in told.out
    assert told.err.count("2 supervisors need 2 slots") == 1
    for name in ("wide1", "wide2"):
        out(capsys, "supervisor", "terminate", name)


def test_a_datasource_without_segments_yet_says_why(tmp_path: Path, capsys: Capture) -> None:
    out(capsys, "supervisor", "submit", written(tmp_path, supervisor_spec("early", suspended=True)))
    said = out(capsys, "segment", "list", "early")
    assert said == "early has no segments yet; its supervisor early is SUSPENDED\n"
    assert json.loads(out(capsys, "segment", "list", "early", "--json")) == []
    out(capsys, "supervisor", "terminate", "early")
    said = out(capsys, "segment", "list", "earl", code=exit_codes.FAILED)
    assert "no datasource 'earl' with data in it, and no supervisor of it" in said


def test_compaction_of_what_is_not_there_is_warned_of(tmp_path: Path, capsys: Capture) -> None:
    assert run(["compaction", "set", written(tmp_path, {"dataSource": "wbe"})]) == exit_codes.OK
    said = capsys.readouterr()
    assert "compaction of wbe is configured" in said.out
    assert "there is no datasource wbe" in said.err


def test_a_wait_for_a_slot_is_told_once(
    world: OverlordWorld, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.until(lambda: bool(world.api.get("/druid/indexer/v1/workers").json()))
    out(capsys, "worker", "disable", "worker:8091")
    looks, world.live = 0, defaultdict(dict)

    def go_on(_s: float) -> None:
        nonlocal looks
        looks += 1
        world.clock.advance(0.25)
        if looks == 10:
            world.api.post("/druid/indexer/v1/worker/worker:8091/enable")
        for task_id, peon in list(world.peons.items()):
            if task_id.startswith("compact") and peon.code is None:
                world.end(task_id)

    monkeypatch.setattr(followed_tasks.time, "sleep", go_on)
    arguments = ["compaction", "run", "web", "--interval", DAY, "--wait"]
    assert run(arguments) == exit_codes.OK
    told = capsys.readouterr().err
    assert told.count("is pending: a worker with a free slot: w: it is disabled") == 1


def test_workers_are_taken_out_of_service(world: OverlordWorld, capsys: Capture) -> None:
    world.until(lambda: bool(world.api.get("/druid/indexer/v1/workers").json()))
    assert "worker:8091" in out(capsys, "worker", "list")
    assert "is disabled" in out(capsys, "worker", "disable", "worker:8091")
    assert "is enabled" in out(capsys, "worker", "enable", "worker:8091")


def test_sql_that_writes_is_followed(world: OverlordWorld, capsys: Capture) -> None:
    text = "REPLACE INTO web OVERWRITE WHERE __time >= DATE '2024-01-01' PARTITIONED BY DAY"
    assert "query: " in out(capsys, "sql", text, code=exit_codes.USAGE)
    statement = "/* by a task */ INSERT INTO web SELECT * FROM other PARTITIONED BY DAY"

    def go_on(_s: float) -> None:
        world.clock.advance(0.25)
        for task_id, peon in list(world.peons.items()):
            if task_id.startswith("query_controller") and peon.code is None:
                world.end(task_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_tasks.time, "sleep", go_on)
        context = ("--context", "rowsPerSegment=7", "--context", "who=me=you")
        said = out(capsys, "sql", statement, *context)
    assert "succeeded" in said
    task = world.api.get(f"/druid/indexer/v1/task/{said.split()[2]}").json()["payload"]
    assert (task["rowsPerSegment"], task["context"]["who"]) == (7, "me=you")
    assert run(["sql", statement, "--context", "maxParseExceptions"]) == exit_codes.USAGE
    assert "write NAME=VALUE" in capsys.readouterr().err

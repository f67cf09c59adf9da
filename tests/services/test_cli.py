"""The command line against a fake server: what is asked, what is printed, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import create_autospec
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.services.cli import exit_codes, publish
from penstock.services.cli.command_options import CLI
from penstock.services.cli.entry import run, with_common_options_first
from penstock.spark.connect import spark_server

THERE = {"topic": "t", "id": "i", "host": "h", "folder": "", "partitions": []}


@dataclass
class FakeServer:
    """Answers by path; remembers what it was asked. It plays the API and the broker."""

    answers: dict[str, tuple[int, object]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, list[str]], bytes]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    detail: str = ""
    more_headers: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        self.asked.append((handler.command, parts.path, parse_qs(parts.query), body))
        self.tokens.append(handler.headers.get("authorization"))
        status, answer = self.answers.get(parts.path, (404, {"error": f"no {parts.path}"}))
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        kind = "text/plain" if isinstance(answer, str) else "application/json"
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        if self.detail:
            handler.send_header("X-Penstock-Detail", self.detail)
        for name, value in self.more_headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.handle(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        fake.url = f"http://127.0.0.1:{http.server_address[1]}"
        (tmp_path / "penstock.json").write_text(
            json.dumps({"http": fake.url, "broker_http": fake.url})
        )
        monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield fake
        http.shutdown()
        thread.join()


Capture = pytest.CaptureFixture[str]


def test_options_of_every_command_may_stand_anywhere() -> None:
    assert with_common_options_first(
        ["topic", "list", "--url", "u", "--json", "--token-file=t", "--debug"]
    ) == [
        *("--url", "u", "--token-file=t", "--debug"),
        *("topic", "list", "--json"),
    ]
    assert with_common_options_first(["pub", "--", "--url"]) == ["pub", "--", "--url"]
    assert with_common_options_first(["sql", "--url"]) == ["--url", "", "sql"]


def test_help_and_usage_errors(capsys: Capture) -> None:
    assert run(["--help"]) == exit_codes.OK
    assert "supervisor" in capsys.readouterr().out
    assert run(["topic", "create"]) == exit_codes.USAGE
    assert run(["nonsense"]) == exit_codes.USAGE
    assert run(["--version"]) == exit_codes.OK


@pytest.mark.parametrize("group", ["", "task", "segment", "flow", "flow queue"])
def test_the_help_of_a_group_cuts_no_summary_off(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*group.split(), "--help"]) == exit_codes.OK
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert lines
    assert not [line for line in lines if line.endswith("...") or len(line) > 80]


def test_no_server_is_a_code_of_its_own(capsys: Capture) -> None:
    assert run(["task", "list", "--url", "http://127.0.0.1:1"]) == exit_codes.NOT_REACHABLE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "penstock up" in error
    assert run(["pub", "-t", "t", "a", "--broker-url", "http://127.0.0.1:1"]) == 3
    assert "the broker at http://127.0.0.1:1 does not answer" in capsys.readouterr().err


def test_a_named_folder_without_a_server_leads_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "data"
    for arguments in (["status"], ["topic", "delete", "t", "--yes"], ["pub", "-t", "t", "a"]):
        assert run([*arguments, "--data-dir", str(folder)]) == exit_codes.NOT_REACHABLE
        assert f"no Penstock runs in {folder}" in capsys.readouterr().err
    # One that has its address in the options may be reached there.
    folder.mkdir()
    (folder / "penstock.toml").write_text('http = "127.0.0.1:1"\n')
    assert run(["status", "--data-dir", str(folder)]) == exit_codes.NOT_REACHABLE
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err
    (folder / "penstock.toml").unlink()
    (folder / "penstock.lock").write_text(f"{os.getpid()}\n")
    assert run(["status", "--data-dir", str(folder)]) == exit_codes.NOT_REACHABLE
    assert f"(process {os.getpid()}) is not ready" in capsys.readouterr().err
    (folder / "penstock.lock").write_text("nonsense")
    assert run(["status", "--data-dir", str(folder)]) == exit_codes.NOT_REACHABLE
    assert "no Penstock runs" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CLI, "data_dir", None)
    (folder / "penstock.lock").unlink()
    assert CLI.api_url() == "http://127.0.0.1:8888"


def test_debug_brings_the_trace(capsys: Capture) -> None:
    run(["task", "list", "--url", "http://127.0.0.1:1", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_the_token_is_sent(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/druid/indexer/v1/tasks"] = (200, [])
    (tmp_path / "token").write_text("s\n")
    assert run(["task", "list", "--token-file", str(tmp_path / "token")]) == exit_codes.OK
    monkeypatch.setenv("PENSTOCK_TOKEN", "t")
    assert run(["task", "list"]) == exit_codes.OK
    assert server.tokens == ["Bearer s", "Bearer t"]


@pytest.mark.parametrize("words", [["--token", "s"], ["--token=s"]])
def test_the_token_is_not_taken_from_the_command_line(words: list[str], capsys: Capture) -> None:
    for command in (["task", "list"], ["up"], ["server", "router"]):
        assert run([*command, *words]) == exit_codes.USAGE
        assert "--token-file FILE, or set PENSTOCK_TOKEN" in capsys.readouterr().err


def test_errors_of_the_server_are_one_line(server: FakeServer, capsys: Capture) -> None:
    path = "/druid/indexer/v1/supervisor/x/suspend"
    server.answers[path] = (400, {"error": "x is suspended already", "errorCode": "conflict"})
    assert run(["supervisor", "suspend", "x"]) == exit_codes.FAILED
    assert capsys.readouterr().err == "penstock: x is suspended already\n"
    server.answers[path] = (400, {"error": "spec.dataSchema: wrong", "errorCode": "invalidInput"})
    assert run(["supervisor", "suspend", "x"]) == exit_codes.USAGE
    server.answers[path] = (404, {"error": "no x", "errorCode": "notFound"})
    assert run(["supervisor", "suspend", "x"]) == exit_codes.FAILED


def test_topics(server: FakeServer, capsys: Capture) -> None:
    server.answers["/topic/create"] = (200, "")
    server.answers["/stats"] = (200, {"topics": []})
    assert run(["topic", "create", "t", "--partitions", "2"]) == exit_codes.OK
    assert server.asked[-1][:3] == ("POST", "/topic/create", {"topic": ["t"], "partitions": ["2"]})
    assert server.asked[-2][2]["include_clients"] == ["false"]
    parts = [{"earliest": 0, "latest": 4}, {"earliest": 2, "latest": 5}]
    server.answers["/stats"] = (
        200,
        {"topics": [{"topic_name": "t", "depth": 1, "paused": False, "partitions": parts}]},
    )
    capsys.readouterr()
    assert run(["topic", "list", "--json"]) == exit_codes.OK
    expected = [{"topic": "t", "partitions": 2, "messages": 7, "channels": 0, "paused": False}]
    assert json.loads(capsys.readouterr().out) == expected
    server.answers["/offsets"] = (
        200,
        {"partitions": [{"partition": 0, "earliest": 3, "latest": 10, "folder": "/x"}]},
    )
    assert run(["topic", "stats", "t"]) == exit_codes.OK
    assert "7" in capsys.readouterr().out
    server.answers["/offsets"] = (404, {"message": "TOPIC_NOT_FOUND"})
    server.detail = "there is no topic 't': create it first"
    for command in ("stats", "peek"):
        assert run(["topic", command, "t"]) == exit_codes.FAILED
        assert capsys.readouterr().err == f"penstock: TOPIC_NOT_FOUND: {server.detail}\n"


def test_what_cannot_be_undone_is_asked_for(server: FakeServer, capsys: Capture) -> None:
    server.answers["/topic/delete"] = (200, "")
    assert run(["topic", "delete", "t"]) == exit_codes.USAGE
    assert "--yes" in capsys.readouterr().err
    assert not server.asked
    assert run(["topic", "delete", "t", "--yes"]) == exit_codes.OK


def batches(server: FakeServer) -> list[list[bytes]]:
    """Return what was published to the server, a list for each request."""
    return [published(body) for _, path, _, body in list(server.asked) if path == "/mpub"]


def published(body: bytes) -> list[bytes]:
    found, at = [], 4
    for _ in range(int.from_bytes(body[:4])):
        size = int.from_bytes(body[at : at + 4])
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(body)
    return found


def test_publish_from_arguments_file_and_input(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server.answers |= {"/mpub": (200, "OK"), "/offsets": (200, THERE)}
    assert run(["pub", "--topic", "t", "a", "b", "--durable", "--key", "k"]) == exit_codes.OK
    assert server.asked[-1][2] == {
        "topic": ["t"],
        "binary": ["true"],
        "key": ["k"],
        "durable": ["1"],
    }
    assert published(server.asked[-1][3]) == [b"a", b"b"]
    file = tmp_path / "events"
    file.write_bytes(b"1\n\n2\r\n3")
    assert run(["pub", "-t", "t", "--file", str(file), "--batch", "2"]) == exit_codes.OK
    assert batches(server)[-2:] == [[b"1", b"2"], [b"3"]]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\n")))
    assert run(["pub", "-t", "t"]) == exit_codes.OK
    assert published(server.asked[-1][3]) == [b"x", b"y"]
    assert "2 events published to t" in capsys.readouterr().out
    assert run(["pub", "a"]) == exit_codes.USAGE
    capsys.readouterr()
    assert run(["pub", "-t", "t", "-f", str(tmp_path / "absent")]) == exit_codes.USAGE
    error = f"penstock: {tmp_path / 'absent'}: cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == error
    assert run(["pub", "-t", "t", "a", ""]) == exit_codes.USAGE
    assert "event 2 is empty" in capsys.readouterr().err
    (tmp_path / "empty").touch()
    assert run(["pub", "-t", "t", "-f", str(tmp_path / "empty")]) == exit_codes.OK
    assert capsys.readouterr().out == "0 events published to t\n"


def test_events_that_came_do_not_wait_for_those_to_come(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers |= {"/mpub": (200, "OK"), "/offsets": (200, THERE)}
    read_end, write_end = os.pipe()
    os.write(write_end, b"1\n2\n3")

    def go_on(publishing: threading.Thread) -> None:
        while not batches(server) and publishing.is_alive():
            publishing.join(0.001)
        os.write(write_end, b"4\n")
        os.close(write_end)

    with os.fdopen(read_end, "rb") as pipe:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
        publishing = threading.Thread(target=run, args=(["pub", "-t", "t"],))
        publishing.start()
        go_on(publishing)
        publishing.join()
    assert batches(server) == [[b"1", b"2"], [b"34"]]


def test_a_line_without_end_is_refused_after_what_came_before_it(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server.answers |= {"/mpub": (200, "OK"), "/offsets": (200, THERE)}
    read = 0

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            nonlocal read
            buffer[:] = (b"a\nb\n" if not read else b"").ljust(len(buffer), b"x")
            read += len(buffer)
            return len(buffer)

    monkeypatch.setattr(publish, "_LINE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert run(["pub", "-t", "t", "--batch", "2"]) == exit_codes.USAGE
    assert batches(server) == [[b"a", b"b"]]
    assert "line 3 is longer than 1,048,576 bytes" in capsys.readouterr().err
    assert read < 4 << 20


def test_long_lines_arrive_whole(server: FakeServer, tmp_path: Path) -> None:
    server.answers |= {"/mpub": (200, "OK"), "/offsets": (200, THERE)}
    file = tmp_path / "events"
    long = b"x" * (5 << 19)
    file.write_bytes(b"1\r\n\n" + long + b"\r\n2\n" + long)
    assert run(["pub", "-t", "t", "-f", str(file)]) == exit_codes.OK
    sent = [event for batch in batches(server) for event in batch]
    assert sent == [b"1", long, b"2", long]


def test_a_publish_to_a_stream_partition_has_no_key(server: FakeServer, capsys: Capture) -> None:
    assert run(["pub", "-t", "t", "--partition", "0", "--key", "k", "a"]) == exit_codes.USAGE
    assert "not both" in capsys.readouterr().err
    assert not server.asked


@pytest.mark.parametrize(
    ("answer", "code"), [("y", exit_codes.OK), ("n", exit_codes.FAILED), ("", exit_codes.FAILED)]
)
def test_only_yes_deletes(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    server.answers["/topic/delete"] = (200, "")
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert run(["topic", "delete", "t"]) == code
    assert bool(server.asked) == (code == exit_codes.OK)


def test_a_question_is_interrupted(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", interrupted)
    assert run(["topic", "delete", "t"]) == exit_codes.INTERRUPTED
    assert not server.asked


def test_ctrl_c_while_the_command_is_imported_is_told_by_the_code_alone() -> None:
    script = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'penstock.services.cli.entry':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from penstock.services.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, b"", b"")


def test_a_publish_that_fails_half_way_says_how_far_it_came(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "events"
    file.write_bytes(b"1\n2\n3\n")
    server.answers["/mpub"] = (503, {"message": "EXITING"})
    assert run(["pub", "-t", "t", "-f", str(file)]) == exit_codes.FAILED
    assert "published" not in capsys.readouterr().out
    server.detail = "topic t is full: raise max_bytes"
    assert run(["pub", "-t", "t", "-f", str(file)]) == exit_codes.FAILED
    assert capsys.readouterr().err == f"penstock: {server.detail}\n"


def test_another_part_of_a_server_is_told(server: FakeServer, capsys: Capture) -> None:
    server.answers["/stats"] = (404, {"message": "NOT_FOUND"})
    server.detail = "there is no /stats"
    assert run(["topic", "list"]) == exit_codes.FAILED
    assert "/stats is not served there: --url names the API" in capsys.readouterr().err


def test_a_wrong_token_is_told_with_the_mend(
    server: FakeServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", "wrong")
    server.answers["/stats"] = (401, {"message": "UNAUTHORIZED"})
    server.detail = "send Authorization: Bearer and the token"
    assert run(["topic", "list"]) == exit_codes.USAGE
    assert "give --token-file, or set PENSTOCK_TOKEN" in capsys.readouterr().err


def test_supervisors(server: FakeServer, tmp_path: Path, capsys: Capture) -> None:
    prefix = "/druid/indexer/v1/supervisor"
    spec = tmp_path / "spec.json"
    spec.write_text('{"type": "penstock"}')
    server.answers[prefix] = (200, {"id": "x"})
    assert run(["supervisor", "submit", str(spec)]) == exit_codes.OK
    # Afterwards it asks whether there are enough slots.
    assert json.loads(server.asked[-2][3]) == {"type": "penstock"}
    spec.write_text('{"type": 1, "type": 2}')
    assert run(["supervisor", "submit", str(spec)]) == exit_codes.OK
    assert server.asked[-2][3] == b'{"type": 1, "type": 2}'  # the overlord refuses it
    spec.write_text('{"type": ')
    assert run(["supervisor", "submit", str(spec)]) == exit_codes.USAGE
    assert "spec.json:1:10" in capsys.readouterr().err
    payload = {
        "dataSource": "x",
        "stream": "x",
        "detailedState": "RUNNING",
        "aggregateLag": 3,
        "activeTasks": [
            {"id": "t1", "groupId": 1, "type": "ACTIVE", "currentOffsets": {"0": 12, "1": 7}}
        ],
        "publishingTasks": [],
        "recentErrors": [
            {"timestamp": "2026", "exceptionClass": "NotFound", "exceptionMessage": "no topic"}
        ],
    }
    server.answers[f"{prefix}/x/status"] = (200, {"id": "x", "payload": payload})
    assert run(["supervisor", "status", "x"]) == exit_codes.OK
    said = capsys.readouterr().out
    assert "RUNNING" in said
    assert "0:12 1:7" in said
    assert "priority" not in said
    payload["activeTasks"][0]["serverPriority"] = -3
    assert run(["supervisor", "status", "x"]) == exit_codes.OK
    assert re.search(r" priority .*\n.*\n.* ACTIVE .* -3 ", capsys.readouterr().out)
    payload["activeTasks"][0]["phase"] = "PENDING"
    assert run(["supervisor", "status", "x"]) == exit_codes.OK
    assert "PENDING" in capsys.readouterr().out
    assert "error       2026  no topic\n" in said
    assert run(["supervisor", "submit", str(tmp_path)]) == exit_codes.USAGE
    assert "Is a directory" in capsys.readouterr().err
    server.answers[f"{prefix}/x/taskGroups/handoff"] = (202, {})
    assert run(["supervisor", "handoff", "x"]) == exit_codes.OK
    assert json.loads(server.asked[-1][3]) == {"taskGroupIds": [1]}


def test_a_supervisor_goes_on_where_it_is_told_to(server: FakeServer, capsys: Capture) -> None:
    one = "/druid/indexer/v1/supervisor/x"
    for verb in ("reset", "resetOffsets"):
        server.answers[f"{one}/{verb}"] = (200, {"id": "x"})
    assert run(["supervisor", "reset", "x", "-y"]) == exit_codes.OK
    assert server.asked[-1][:2] == ("POST", f"{one}/reset")
    assert run(["supervisor", "reset", "x", "--to", "0=12", "--to", "1=7", "-y"]) == exit_codes.OK
    assert server.asked[-1][1] == f"{one}/resetOffsets"
    assert json.loads(server.asked[-1][3])["partitions"]["partitionOffsetMap"] == {"0": 12, "1": 7}
    told = len(server.asked)
    for wrong in ("0", "a=1", "0=", "=1", "0=-1", "0=1.5", "0=" + "9" * 5000):
        assert run(["supervisor", "reset", "x", "--to", wrong, "-y"]) == exit_codes.USAGE
        assert "PARTITION=OFFSET" in capsys.readouterr().err
    assert (
        run(["supervisor", "reset", "x", "--to", "0=1", "--to", "00=2", "-y"]) == exit_codes.USAGE
    )
    assert "twice" in capsys.readouterr().err
    assert run(["supervisor", "reset", "x", "--to", "0=1"]) == exit_codes.USAGE
    assert "confirm with --yes" in capsys.readouterr().err
    assert len(server.asked) == told
    other = {"id": "x", "backfillSupervisorId": "x_backfill_1"}
    server.answers[f"{one}/resetToLatestAndBackfill"] = (200, other)
    assert run(["supervisor", "backfill", "x"]) == exit_codes.OK
    assert server.asked[-1][2] == {}
    assert run(["supervisor", "backfill", "x", "--tasks", "3"]) == exit_codes.OK
    assert server.asked[-1][2] == {"backfillTaskCount": ["3"]}
    assert "x_backfill_1 reads those before them" in capsys.readouterr().out


def test_what_tasks_have_counted_is_a_table(server: FakeServer, capsys: Capture) -> None:
    path = "/druid/indexer/v1/supervisor/x/stats"
    server.answers[path] = (200, {})
    assert run(["supervisor", "stats", "x"]) == exit_codes.OK
    assert "no running task" in capsys.readouterr().out
    totals = {
        "processed": 1_200,
        "unparseable": 2,
        "thrownAwayLate": 3,
        "thrownAwayEarly": 4,
        "thrownAwayFiltered": 5,
        "processedBytes": 9_000,
    }
    rates = {"1m": {"processed": 20.5}, "5m": {}, "15m": {}}
    counted = {
        "totals": {"buildSegments": totals},
        "movingAverages": {"buildSegments": rates},
    }
    server.answers[path] = (200, {"1": {"index_x": counted}})
    assert run(["supervisor", "stats", "x"]) == exit_codes.OK
    said = capsys.readouterr().out.splitlines()
    assert "late   early   filtered" in said[0]
    assert said[2].split() == ["1", "index_x", "1,200", "2", "3", "4", "5", "9,000", "20.5"]
    # Of a release that tells something else.
    server.answers[path] = (200, {"1": {"index_x": None}, "2": ["index_y"]})
    assert run(["supervisor", "stats", "x"]) == exit_codes.OK
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["1", "index_x"]


def test_numbers_of_a_lag_add_up_and_their_age_is_told(server: FakeServer, capsys: Capture) -> None:
    payload: dict[str, object] = {
        "latestOffsets": {"0": 11_001, "1": 5},
        # The second one is a replica of the first that is behind it.
        "activeTasks": [{"currentOffsets": {"0": offset}} for offset in (10_501, 10_400)],
        "minimumLag": {"0": 1_000},
        "committedOffsets": {"0": 9_001},
        "aggregateLag": 1_000,
        "offsetsLastUpdated": "2024-01-01T00:00:05.000Z",
    }
    answer = {"generationTime": "2024-01-01T00:00:30.000Z", "payload": payload}
    server.answers["/druid/indexer/v1/supervisor/x/status"] = (200, answer)
    assert run(["supervisor", "lag", "x"]) == exit_codes.OK
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["partition", "latest", "read", "persisted", "committed", "lag"]
    assert said[2].split() == ["0", "11,001", "10,501", "10,001", "9,001", "1,000"]
    assert said[3].split() == ["1", "5"]
    assert said[-1] == "1,000 messages behind, as of 25 s ago"
    assert run(["supervisor", "status", "x"]) == exit_codes.OK
    lag = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("lag"))
    assert lag.split(maxsplit=1)[1] == "1000, as of 25 s ago"
    # About now, as it is where the stream is asked each second; or nobody has looked yet.
    for looked in ("2024-01-01T00:00:28.500Z", None):
        payload["offsetsLastUpdated"] = looked
        assert run(["supervisor", "lag", "x"]) == exit_codes.OK
        assert capsys.readouterr().out.splitlines()[-1] == "1,000 messages behind"


@pytest.mark.parametrize(
    ("command", "path", "answer", "code"),
    [
        ("supervisor lag x", "/druid/indexer/v1/supervisor/x/status", lagging, exit_codes.OK)
        for lagging in (
            {"payload": {"activeTasks": [{"currentOffsets": {"0": None}}, 5], "latestOffsets": {}}},
            {"payload": {"latestOffsets": {"0": None}, "aggregateLag": "many"}},
        )
    ]
    + [
        ("sql SELECT", "/druid/v2/sql", answer, exit_codes.FAILED)
        for answer in ([None], [[None]], [["a"], None])
    ],
)
def test_an_answer_of_another_release_is_no_failure_of_ours(
    server: FakeServer, capsys: Capture, command: str, path: str, answer: object, code: int
) -> None:
    server.answers[path] = (200, answer)
    assert run(command.split()) == code
    assert ("check that it is the API of Penstock" in capsys.readouterr().err) is (
        code != exit_codes.OK
    )


def test_a_handoff_is_followed_until_its_tasks_have_published(
    server: FakeServer, capsys: Capture
) -> None:
    prefix = "/druid/indexer/v1/supervisor/x"
    tasks = [{"id": "a", "groupId": 0}, {"id": "b", "groupId": 0}, {"id": "c", "groupId": 1}]
    server.answers[f"{prefix}/status"] = (200, {"id": "x", "payload": {"activeTasks": tasks}})
    server.answers[f"{prefix}/taskGroups/handoff"] = (202, {})

    def ended(task: str, code: str, error: str | None = None) -> None:
        status = {"id": task, "statusCode": code, "errorMsg": error}
        server.answers[f"/druid/indexer/v1/task/{task}/status"] = (200, {"status": status})

    ended("a", "SUCCESS")
    ended("b", "FAILED", "a replica has published")
    ended("c", "SUCCESS")
    assert run(["supervisor", "handoff", "x", "--wait"]) == exit_codes.OK
    said = capsys.readouterr()
    assert said.out.splitlines()[1:] == ["task a succeeded", "task c succeeded"]
    assert said.err == ""
    ended("c", "FAILED", "no disk")
    assert run(["supervisor", "handoff", "x", "--group", "1", "--wait"]) == exit_codes.FAILED
    assert "task c failed: no disk" in capsys.readouterr().err


def test_tasks_and_segments(server: FakeServer, capsys: Capture) -> None:
    server.answers["/druid/indexer/v1/tasks"] = (200, [{"id": "t", "statusCode": "RUNNING"}])
    assert run(["task", "list", "--state", "running"]) == exit_codes.OK
    assert server.asked[-1][2] == {"state": ["running"], "max": ["50"]}
    server.answers["/druid/indexer/v1/task/t/log"] = (200, "hello\n")
    assert run(["task", "log", "t", "--offset", "-10"]) == exit_codes.OK
    assert capsys.readouterr().out.endswith("hello\n")
    assert run(["task", "log", "u"]) == exit_codes.FAILED
    base = "/druid/coordinator/v1/metadata/datasources"
    server.answers[base] = (200, ["x"])
    server.answers[f"{base}/x/segments"] = (200, [{"identifier": "x_1", "totalRows": 5, "size": 9}])
    capsys.readouterr()
    assert run(["segment", "list"]) == exit_codes.OK
    assert "x_1" in capsys.readouterr().out
    gone = {"dataSegment": {"identifier": "x_0"}, "usedStatusLastUpdatedDate": "2024"}
    server.answers[f"{base}/x/unusedSegments"] = (200, [gone])
    assert run(["segment", "list", "x", "--unused"]) == exit_codes.OK
    assert "x_0" in capsys.readouterr().out
    assert run(["segment", "list", "--unused"]) == exit_codes.USAGE
    server.answers["/druid/indexer/v1/datasources/x/markUnused"] = (200, {"numChangedSegments": 1})
    assert run(["segment", "disable", "x", "x_1"]) == exit_codes.OK
    assert json.loads(server.asked[-1][3]) == {"segmentIds": ["x_1"]}
    for wrong in ([], ["x_1", "--interval", "2013/2014"]):
        assert run(["segment", "disable", "x", *wrong]) == exit_codes.USAGE
    server.answers["/druid/indexer/v1/task/u/shutdown"] = (200, {"task": "u"})
    assert run(["task", "stop", "u"]) == exit_codes.FAILED
    assert server.asked[-1][1].endswith("/status")


def test_sql_in_every_format(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sql = "/druid/v2/sql"
    server.answers[sql] = (200, [["year", "x"], [2013, None]])
    assert run(["sql", "SELECT 1;"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "2013" in out
    assert "NULL" in out
    assert "1 row" in out
    assert json.loads(server.asked[-1][3])["query"] == "SELECT 1"
    server.answers[sql] = (200, "year\n2013\n\n")
    file = tmp_path / "q.sql"
    file.write_text("SELECT\n 2\n")
    assert run(["sql", "-f", str(file), "--format", "csv"]) == exit_codes.OK
    assert capsys.readouterr().out == "year\n2013\n"
    assert json.loads(server.asked[-1][3]) == {
        "query": "SELECT\n 2",
        "resultFormat": "csv",
        "header": True,
        "context": {},
    }
    server.answers[sql] = (200, [["year"], [2013]])
    for form in ("table", "json"):
        told = ["--format", form, "--context", "noProjections=true", "--context", "timeout=5"]
        assert run(["sql", "SELECT 2", *told]) == exit_codes.OK
        wanted = {"noProjections": True, "timeout": 5}
        assert json.loads(server.asked[-1][3])["context"] == wanted
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 3"))
    assert run(["sql", "--json"]) == exit_codes.OK
    assert json.loads(server.asked[-1][3])["resultFormat"] == "object"
    server.answers[sql] = (
        400,
        {"error": "druidException", "errorCode": "invalidInput", "errorMessage": "no column y"},
    )
    capsys.readouterr()
    for arguments in (["sql", "SELECT y"], ["sql", "SELECT y", "--format", "jsonl"]):
        assert run(arguments) == exit_codes.USAGE
        assert capsys.readouterr().err == "penstock: no column y\n"
    # Such as a datasource that has no rows yet: the statement is right.
    server.answers[sql] = (400, {"errorCode": "conflict", "errorMessage": "no rows yet"})
    for arguments in (["sql", "SELECT y"], ["sql", "SELECT y", "--format", "jsonl"]):
        assert run(arguments) == exit_codes.FAILED
        assert capsys.readouterr().err == "penstock: no rows yet\n"
    assert run(["sql", "  ;"]) == exit_codes.USAGE
    assert run(["sql", "SELECT 1", "-f", str(file)]) == exit_codes.USAGE


def test_arguments_that_are_not_utf8(server: FakeServer, capsys: Capture) -> None:
    server.answers["/status"] = (200, {})
    name = "a\udcff"  # as Python reads the bytes a and 0xff
    for arguments in (
        ["rule", "list", name],
        ["supervisor", "status", name],
        ["segment", "list", name],
        ["task", "status", name],
        ["topic", "stats", name],
        ["pub", "--topic", name, "x"],
        ["pub", "--topic", "clicks", name],
        ["compaction", "show", name],
        ["sql", name],
        ["sql", "--format", "csv", name],
        ["sql", "INSERT " + name],
    ):
        assert run(arguments) == exit_codes.USAGE
        expected = "a\\udcff' has bytes that are not UTF-8: write it in UTF-8\n"
        said = capsys.readouterr().err
        assert said.startswith("penstock: '")
        assert said.endswith(expected)
    sent = server.asked[-1][1] if server.asked else ""
    assert "sql" not in sent


def test_a_statement_on_standard_input_that_is_not_utf8(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"SELECT \xff"), "utf-8"))
    assert run(["sql"]) == exit_codes.USAGE
    assert capsys.readouterr().err == "penstock: -: is not UTF-8 text: byte 7 is invalid\n"
    assert server.asked == []


def test_comments_of_rules_that_no_header_can_hold(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rules.json"
    file.write_text("[]")
    for comment in ("5 €", "two\nlines", "\x1b[31mred"):
        assert run(["rule", "set", "clicks", str(file), "--comment", comment]) == exit_codes.USAGE
        assert capsys.readouterr().err.startswith("penstock: --comment: ")
    assert server.asked == []
    server.answers["/druid/coordinator/v1/rules/clicks"] = (200, [])
    assert run(["rule", "set", "clicks", str(file), "--comment", "größe"]) == exit_codes.OK


def test_the_prompt_goes_on_after_errors_and_interrupts(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sql = "/druid/v2/sql"
    typed: list[str | type[BaseException]] = []

    class Session:
        def __init__(self, **_: object) -> None: ...

        def prompt(self, _text: str) -> str:
            line = typed.pop(0) if typed else EOFError
            if isinstance(line, str):
                return line
            raise line

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("prompt_toolkit.PromptSession", Session)
    monkeypatch.setattr("sys.stdin", Terminal())
    server.answers[sql] = (200, [["a", "b"], [1, True]])
    server.answers["/druid/coordinator/v1/metadata/datasources"] = (200, ["clicks", "orders"])

    typed[:] = ["\\d", "\\d clicks;", "\\x", "SELECT", KeyboardInterrupt, " SELECT", "  1 ;", ";"]
    assert run(["sql"]) == exit_codes.OK
    said = capsys.readouterr()
    assert "clicks\norders\n" in said.out
    assert "true" in said.out
    assert "unknown command \\x" in said.err
    assert "the statement is empty" in said.err
    asked = [json.loads(one[3])["query"] for one in server.asked if one[1] == sql]
    assert asked == ['DESCRIBE "clicks"', " SELECT\n  1"]

    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.services.cli.sql.ask", interrupted)
    typed[:] = ["SELECT 1;", "\\q"]
    assert run(["sql"]) == exit_codes.OK
    assert capsys.readouterr().err == "penstock: stopped\n"
    assert run(["sql", "SELECT 1"]) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err == "penstock: stopped\n"

    insert = "INSERT INTO t SELECT 1 AS __time PARTITIONED BY ALL"
    server.answers[f"{sql}/task"] = (200, {"taskId": "x"})
    monkeypatch.setattr("penstock.services.cli.sql.follow", interrupted)
    goes_on = "penstock: task x continues; to stop it: penstock task shutdown x\n"
    typed[:] = [f"{insert};", "\\q"]
    assert run(["sql"]) == exit_codes.OK
    assert capsys.readouterr().err == goes_on
    assert run(["sql", insert]) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err == goes_on

    monkeypatch.setattr("penstock.services.json_client.JsonClient.post", interrupted)
    assert run(["sql", insert]) == exit_codes.INTERRUPTED
    assert (
        "its task may have been submitted: check with penstock task list" in capsys.readouterr().err
    )


def test_with_a_url_the_api_is_asked_for_the_broker(server: FakeServer, capsys: Capture) -> None:
    server.answers["/status"] = (200, {"version": "1", "broker_http": server.url, "services": []})
    server.answers["/topic/pause"] = (200, "")
    assert run(["topic", "pause", "t", "--url", server.url]) == exit_codes.OK
    assert [one[1] for one in server.asked] == ["/status", "/topic/pause"]
    assert run(["status"]) == exit_codes.OK
    assert server.url in capsys.readouterr().out


def test_status_names_what_is_waited_for(server: FakeServer, capsys: Capture) -> None:
    wait = {
        "dependency": "deep storage",
        "work": "publishing",
        "since": "2026-11-23T02:00:00.000Z",
        "tries": 12,
        "error": "s3://b: 503",
    }
    worker = {"service": "worker", "instance": "w", "address": "h:1", "ready": False}
    server.answers["/status"] = (
        200,
        {
            "version": "1",
            "services": [{**worker, "reasons": ["x"]}],
            "reasons": ["worker h:1: deep storage since then"],
            "waits": [wait],
        },
    )
    assert run(["status"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "not ready: worker h:1: deep storage since then" in out
    line = "deep storage since 2026-11-23T02:00:00.000Z, 12 tries (publishing): s3://b: 503"
    assert f"waits for {line}" in out
    found = [{"id": "s", "detailedState": "WAITING_FOR_STORAGE", "healthy": False, "waits": [wait]}]
    server.answers["/druid/indexer/v1/supervisor"] = (200, found)
    assert run(["supervisor", "list"]) == exit_codes.OK
    assert f"s waits for {line}" in capsys.readouterr().out
    slot = "a worker with a free slot: w: it is disabled: enable it, or wait for others"
    skipped = {"count": 12, "files": [{"path": "/logs/a", "reason": "permission denied"}] * 10}
    payload = found[0] | {"tasksWaitFor": [slot], "skippedFiles": skipped}
    server.answers["/druid/indexer/v1/supervisor/s/status"] = (200, {"payload": payload})
    assert run(["supervisor", "status", "s"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert f"waits for   {line}" in out
    assert f"tasks       wait for {slot}" in out
    assert "skipped     12 files, such as /logs/a: permission denied" in out
    task = {"id": "t", "statusCode": "RUNNING", "runnerStatusCode": "RUNNING", "waits": [wait]}
    server.answers["/druid/indexer/v1/task/t/status"] = (200, {"task": "t", "status": task})
    assert run(["task", "status", "t"]) == exit_codes.OK
    assert f"waits for           {line}" in capsys.readouterr().out
    server.answers["/druid/indexer/v1/tasks"] = (200, [task])
    assert run(["task", "list"]) == exit_codes.OK
    assert f"t waits for {line}" in capsys.readouterr().out


def test_status_of_a_start_says_what_it_waits_for(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "penstock.json").unlink()
    (tmp_path / "penstock.lock").write_text(str(os.getpid()))
    (tmp_path / "run").mkdir()
    text = "waits for Spark since 2026-11-23T02:00:00.000Z, 3 tries (answer a query): gone"
    children = {"router": {"pid": 1, "restarts": 0, "ready": False, "waits": text}}
    (tmp_path / "run" / "children.json").write_text(json.dumps(children))
    assert run(["status", "--data-dir", str(tmp_path)]) == exit_codes.OK
    assert f"router {text}" in capsys.readouterr().out
    assert run(["supervisor", "list", "--data-dir", str(tmp_path)]) != exit_codes.OK
    assert "is not ready yet: it waits for router; try again" in capsys.readouterr().err


def test_doctor_finds_what_is_wrong(
    server: FakeServer, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # See test_doctor.py.
    monkeypatch.setattr(spark_server, "SparkServer", create_autospec(spark_server.SparkServer))
    monkeypatch.setattr(spark_server, "prepare_spark", lambda *_: False)
    (tmp_path / "format.json").write_text('{"format": 1}')
    assert run(["doctor", "--json", "--data-dir", str(tmp_path)]) == exit_codes.FAILED
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["Spark"]["verdict"] == "ok"
    assert "does not answer" in found["server"]["text"]
    reasons = ["worker 127.0.0.1:7: deep storage since 2026-11-23, 9 tries: 503"]
    server.answers["/status"] = (200, {"ready": False, "reasons": reasons})
    assert run(["doctor", "--json", "--data-dir", str(tmp_path)]) == exit_codes.FAILED
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["server"]["text"] == f"running at {server.url}, but not ready: {reasons[0]}"
    server.answers["/status"] = (200, {"ready": True})
    run(["doctor", "--json", "--data-dir", str(tmp_path)])
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["server"]["verdict"] == "ok"
    assert found["server"]["text"].startswith(f"running at {server.url}")
    assert run(["doctor", "--data-dir", "/proc/penstock"]) == exit_codes.FAILED
    assert "cannot be written" in capsys.readouterr().out
    (tmp_path / "penstock.json").unlink()
    port = server.url.rpartition(":")[2]
    free = 'broker-http = "127.0.0.1:0"\nbroker-tcp = "127.0.0.1:0"'
    (tmp_path / "penstock.toml").write_text(f'http = "127.0.0.1:{port}"\n{free}')
    assert run(["doctor", "--data-dir", str(tmp_path)]) == exit_codes.FAILED
    out = capsys.readouterr().out
    assert f"port {port}" in out
    assert "→ stop that program, or choose another port with --http (port 0 picks" in out
    assert out.count("stop that program") == 1


def test_the_demo_is_in_the_help(capsys: Capture) -> None:
    assert run(["--help"]) == exit_codes.OK
    assert "demo " in capsys.readouterr().out


def test_an_unknown_datasource_is_one_that_the_server_does_not_have(server: FakeServer) -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `nope` cannot be found"
    server.answers["/druid/v2/sql"] = (400, {"errorCode": "invalidInput", "errorMessage": text})
    assert run(["sql", "SELECT * FROM nope"]) == exit_codes.FAILED
    server.answers["/druid/v2/sql"] = (400, {"errorCode": "invalidInput", "errorMessage": "no"})
    assert run(["sql", "SELEC"]) == exit_codes.USAGE


def test_a_command_imports_no_server() -> None:
    """A command that asks a server starts in a third of a second: it is run often."""
    script = (
        "import sys, penstock.services.cli; print([m for m in ('numpy', 'pyarrow', 'sqlalchemy',"
        " 'pydantic', 'pyspark', 'penstock.indexing.overlord', 'penstock.indexing.specs',"
        " 'penstock.broker') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"

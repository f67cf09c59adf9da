"""A unique secret in each place that accepts one: used with success and with failure, seen nowhere.

Searched are the whole data folder with the logs and the folders of Spark, all answers, a backup,
and the command lines and environments of all processes of the server while a task runs.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from penstock.storage.secrets.sealed_values import SealingKey
from penstock.storage.secrets.secret_sources import Secrets
from penstock.testing.server import LocalPenstock
from tests.broker.kafka_kit import mock_cluster
from tests.kits.hostile_client_kit import children
from tests.kits.this_host_kit import LISTED
from tests.system.serving_kit import contents, files_in, serving, until

pytestmark = pytest.mark.system

ROW = b'{"time": "2026-11-28T00:00:00Z", "n": 1}\n'
TASKS = "/druid/indexer/v1/task"
# A port of this host at which nothing listens.
CLOSED = "127.0.0.1:9"
KEY_VARIABLE = "LEAK_TEST_MASTER_KEY"
PLAIN_VARIABLE = "LEAK_TEST_PASSWORD"
OF_SPECS = "PENSTOCK_INPUT_LEAK_TEST"


class Partner(BaseHTTPRequestHandler):
    """Another server: it has rows for those with the password, and keeps what it was sent."""

    seen: set[str] = set()  # noqa: RUF012 - of one test
    entered = threading.Event()
    go_on = threading.Event()

    def do_GET(self) -> None:
        self._keep()
        if self.path == "/hold":
            self.entered.set()
            self.go_on.wait(120)
        status = 401 if self.path == "/refused" else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(ROW)))
        self.end_headers()
        self.wfile.write(ROW)

    def do_POST(self) -> None:
        self._keep()
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(500 if self.path == "/refused" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _keep(self) -> None:
        for name, value in self.headers.items():
            if name.lower() == "authorization" and value.startswith("Basic "):
                self.seen.add(base64.b64decode(value[6:]).decode().partition(":")[2])
            self.seen.add(value.removeprefix("Bearer "))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        del format, args


@pytest.fixture
def partner() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Partner)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Partner.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def brokers() -> Iterator[str]:
    """A cluster of Kafka with five records."""
    with mock_cluster() as cluster:
        cluster.create("leaks")
        cluster.add("leaks", 0, [ROW] * 5)
        yield cluster.servers


def http_task(name: str, url: str, password: object, headers: Mapping[str, str]) -> object:
    source = {
        "type": "http",
        "uris": [url],
        "httpAuthenticationUsername": "ann",
        "httpAuthenticationPassword": password,
        "requestHeaders": dict(headers),
    }
    return batch_task(name, source)


def batch_task(name: str, source: Mapping[str, object], datasource: str = "leaks") -> object:
    io = {"type": "index_parallel", "inputSource": source}
    if source["type"] != "sql":
        io["inputFormat"] = {"type": "json"}
    return {
        "type": "index_parallel",
        "id": name,
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
                "timestampSpec": {"column": "time", "format": "iso"},
                "dimensionsSpec": {"dimensions": ["n"]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": io,
        },
    }


def database(password: str) -> dict[str, object]:
    connector = {
        "connectURI": f"jdbc:postgresql://{CLOSED}/shop",
        "user": "ann",
        "password": password,
    }
    config = {"type": "postgresql", "connectorConfig": connector}
    return {"type": "sql", "database": config, "sqls": ["SELECT 1 AS time"]}


def kafka(datasource: str, password: str, **properties: str) -> object:
    """Return a spec whose client gets a password, and uses it if it has to."""
    return {
        "type": "kafka",
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
                "timestampSpec": {"column": "time", "format": "iso"},
                "dimensionsSpec": {"dimensions": ["n"]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "type": "kafka",
                "topic": "leaks",
                "inputFormat": {"type": "json"},
                "useEarliestOffset": True,
                "startDelay": "PT1S",
                "consumerProperties": {
                    "sasl.username": "ann",
                    "sasl.password": password,
                    **{name.replace("_", "."): value for name, value in properties.items()},
                },
            },
        },
    }


def flow(url: str) -> str:
    return f"""
name: leaks
parameters: {{p: 'secret://flow_parameter'}}
processors:
  Make: {{type: GenerateFlowFile, properties: {{size: 1 B}}, schedule: every 1 s}}
  Good: {{type: InvokeHTTP, properties: {{url: '{url}/ok', method: POST, token: '#{{p}}'}},
    auto_terminated: [original, response, retry, no.retry, failure]}}
  Bad: {{type: InvokeHTTP, properties: {{url: '{url}/refused', method: POST,
    username: ann, password: 'secret://flow_property'}},
    auto_terminated: [original, response, retry, no.retry, failure]}}
connections:
  - {{from: Make.success, to: Good}}
  - {{from: Make.success, to: Bad}}
"""


class Leaks:
    """The planted secrets, and the places in which one was seen."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self.seen: list[str] = []

    def plant(self, name: str, value: str = "") -> str:
        self.planted[name] = value or f"leak-{secrets.token_hex(12)}"
        return self.planted[name]

    def search(self, place: str, content: bytes) -> None:
        for name, value in self.planted.items():
            found = value.encode()
            if found in content or base64.b64encode(found).rstrip(b"=")[:-1] in content:
                self.seen.append(f"{name} in {place}")

    def search_folder(self, folder: Path) -> int:
        count = 0
        for path, content in contents(files_in(folder)):
            self.search(str(path.relative_to(folder)), content)
            count += 1
        return count

    def search_processes(self, launcher: int) -> set[str]:
        """Search all descendants of a process; return their names."""
        names: set[str] = set()
        found, waiting = set[int](), [launcher]
        while waiting:
            pid = waiting.pop()
            waiting += children(pid)
            found.add(pid)
        for pid in found - {launcher}:
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                for file in ("cmdline", "environ"):
                    self.search(f"{file} of {name}", Path(f"/proc/{pid}/{file}").read_bytes())
            except OSError:  # it has just ended
                continue
            names.add(name)
        self.search("cmdline of the launcher", Path(f"/proc/{launcher}/cmdline").read_bytes())
        return names


class Api:
    """Requests with the token; every answer is searched."""

    def __init__(self, client: httpx.Client, leaks: Leaks) -> None:
        self._client = client
        self._leaks = leaks

    def __call__(
        self, method: str, path: str, json: object = None, content: str | None = None
    ) -> httpx.Response:
        answer = self._client.request(method, path, json=json, content=content)
        self._leaks.search(f"{method} {path}", answer.content + str(answer.headers).encode())
        return answer

    def ended(self, name: str) -> str:
        def status() -> str:
            return str(self("GET", f"{TASKS}/{name}/status").json()["status"]["statusCode"])

        until(f"the end of {name}", lambda: status() != "RUNNING")
        for path in ("", "/status", "/log", "/reports"):
            self("GET", f"{TASKS}/{name}{path}")
        return status()


@pytest.fixture
def leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaks:
    """Plant the secrets, in a data folder that does not exist yet."""
    made = Leaks()
    folder = tmp_path / "data" / "secrets"
    folder.mkdir(parents=True)
    (tmp_path / "from_file").write_text(made.plant("file"))
    program = f"print({made.plant('command')[::-1]!r}[::-1])"
    sources = f"""
        [key]
        variable = "{KEY_VARIABLE}"
        [secrets.variable]
        variable = "{PLAIN_VARIABLE}"
        [secrets.file]
        file = "{tmp_path / "from_file"}"
        [secrets.command]
        command = ["{sys.executable}", "-c", "{program}"]
    """
    (folder / "secrets.toml").write_text(sources)
    (folder / "secrets.toml").chmod(0o600)
    key = made.plant("key", SealingKey(os.urandom(32)).text)
    monkeypatch.setenv(KEY_VARIABLE, key)
    monkeypatch.setenv(PLAIN_VARIABLE, made.plant("variable"))
    store = Secrets(folder, {KEY_VARIABLE: key}).store()
    for name in ("token", "emitter", "http", "database", "flow_parameter", "flow_property"):
        store.set(name, made.plant(name))
    store.set("emitter", f"ann:{made.planted['emitter']}")
    made.plant("of specs")
    return made


def test_no_secret_is_seen_anywhere(
    leaks: Leaks, tmp_path: Path, partner: str, brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_SPARK_CONNECT", raising=False)  # Spark's own files are searched
    variables = {
        "PENSTOCK_TOKEN": "secret://token",
        "PENSTOCK_EMITTERS": "http,log",
        "PENSTOCK_EMITTER_URL": f"{partner}/emit",
        "PENSTOCK_EMITTER_AUTH": "secret://emitter",
        "PENSTOCK_EMITTER_FLUSH": "1s",
        "PENSTOCK_REACHABLE_HOSTS": LISTED,
        OF_SPECS: leaks.planted["of specs"],
    }
    data = tmp_path / "data"
    with serving(data, variables) as penstock:
        token = {"Authorization": f"Bearer {leaks.planted['token']}"}
        with httpx.Client(base_url=penstock.api_url, headers=token, timeout=60) as client:
            use_everything(Api(client, leaks), leaks, penstock, partner, brokers)
        backup = tmp_path / "backup"
        command = [sys.executable, "-m", "penstock", "backup", str(backup), "--data-dir", str(data)]
        done = subprocess.run(command, capture_output=True, check=True)
        leaks.search("output of penstock backup", done.stdout + done.stderr)
        assert leaks.search_folder(data) > 50
    assert leaks.search_folder(backup) > 5
    leaks.search_folder(data)
    wanted = {name for name in leaks.planted if name not in {"key", "token", "database", "command"}}
    used = {name for name, value in leaks.planted.items() if value in Partner.seen}
    assert used >= wanted, "each was used where it belongs"
    assert leaks.seen == []


def use_everything(
    api: Api, leaks: Leaks, penstock: LocalPenstock, partner: str, brokers: str
) -> None:
    assert api("GET", "/status").is_success
    variable = {"type": "environment", "variable": OF_SPECS}
    # Success, with a look at the processes while the peon works.
    for name, url, password, header in (
        ("t1", "/rows", "secret://http", "secret://file"),
        ("t2", "/hold", variable, "secret://variable"),
        ("t3", "/refused", "secret://http", "secret://variable"),
    ):
        task = http_task(name, partner + url, password, {"X-Key": header})
        answer = api("POST", TASKS, json=task)
        assert answer.is_success, answer.text
    assert Partner.entered.wait(120)
    processes = leaks.search_processes(penstock.pid or 0)
    assert {"penstock-peon", "java"} <= processes, processes
    Partner.go_on.set()
    assert [api.ended(name) for name in ("t1", "t2", "t3")] == ["SUCCESS", "SUCCESS", "FAILED"]

    assert api("POST", TASKS, json=batch_task("t4", database("secret://database"))).is_success
    supervisors = "/druid/indexer/v1/supervisor"
    closed = {"bootstrap_servers": CLOSED, "security_protocol": "SASL_PLAINTEXT"}
    for spec in (
        kafka("refused", "secret://command", sasl_mechanism="PLAIN", **closed),
        kafka("streamed", "secret://file", bootstrap_servers=brokers),
    ):
        answer = api("POST", supervisors, json=spec)
        assert answer.is_success, answer.text
    refused = f"{supervisors}/refused/status"
    until("an error of the supervisor", lambda: "Kafka" in api("GET", refused).text)

    def streamed() -> str:
        return api("POST", "/druid/v2/sql", json={"query": "SELECT count(*) FROM streamed"}).text

    until("the rows of the stream", lambda: "[5]" in streamed() or ":5}" in streamed())
    for name in ("refused", "streamed"):
        for path in ("", "/status", "/history", "/stats", "/health"):
            api("GET", f"{supervisors}/{name}{path}")

    applied = api("PUT", "/flow", content=flow(partner))
    assert applied.is_success, applied.text
    assert api("POST", "/flow/start").is_success
    wanted = {leaks.planted["flow_parameter"], leaks.planted["flow_property"]}
    until("the requests of the flow", lambda: wanted <= Partner.seen)
    for path in (
        "/flow",
        "/flow?format=yaml",
        "/flow/status",
        "/flow/bulletins",
        "/metrics",
    ):
        api("GET", path)
    leaks.search_processes(penstock.pid or 0)
    api("POST", "/flow/stop")

    # Not as another part of a request: it is text there, or refused.
    inline = {"type": "inline", "data": '{"time": "2026-11-28", "n": "secret://http"}'}
    assert api("POST", TASKS, json=batch_task("t5", inline)).is_success
    assert api.ended("t5") == "SUCCESS"
    text = api("POST", "/druid/v2/sql", json={"query": "SELECT 'secret://http' AS a, * FROM leaks"})
    assert text.is_success, text.text
    assert "secret://http" in text.text
    for refused in (
        batch_task("t6", inline, datasource="secret://http"),
        batch_task("t7", {"type": "local", "files": ["secret://http"]}),
        batch_task("t8", {"type": "http", "uris": ["secret://http"]}),
        batch_task("secret://http", inline),
    ):
        assert api("POST", TASKS, json=refused).status_code == 400
    # The files of the secrets themselves cannot be read as an input.
    stolen = {"type": "local", "files": [str(penstock.folder / "secrets" / "secrets.json")]}
    assert api("POST", TASKS, json=batch_task("t9", stolen)).is_success
    assert api.ended("t9") == "FAILED"
    # The task of the database waits, because nothing answers there.
    why = f"{TASKS}/t4/why"
    until("the reason of the wait", lambda: bool(api("GET", why).json()["waits"]), 60)
    assert api("POST", f"{TASKS}/t4/shutdown").is_success
    assert api.ended("t4") == "FAILED"
    for name in ("refused", "streamed"):
        api("POST", f"{supervisors}/{name}/terminate")

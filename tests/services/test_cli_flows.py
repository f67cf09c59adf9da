"""`penstock flow …` against a real flow service."""

from __future__ import annotations

import io
import itertools
import json
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.cli.entry import run
from penstock.services.cli.flow.flow_control import size
from penstock.services.http_server import HttpServer
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import with_token

Command = Callable[..., str]

FLOW = """\
name: shell
processors:
  Make: {type: GenerateFlowFile, properties: {batch_size: 3}}
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Make.success, to: Log}
"""
WAY = "Make.success -> Log"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[FlowController]:
    numbers = itertools.count()
    opened = FlowController.open(
        str(tmp_path / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    yield opened
    opened.close()


@pytest.fixture
def command(
    controller: FlowController,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Command]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = HttpServer(
        application(
            FlowRoutes(lambda: controller, SystemClock()).routes(), access=with_token(None)
        ),
        listener,
    )
    server.start()
    monkeypatch.chdir(tmp_path)

    def do(*words: str, code: int = 0) -> str:
        assert run(["flow", *words, "--url", url]) == code
        shown = capfd.readouterr()
        return shown.err if code and "--json" not in words else shown.out

    yield do
    server.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flow.yaml"
    path.write_text(FLOW)
    return path


def test_a_flow_is_compared_applied_and_exported(command: Command, file: Path) -> None:
    assert "+ processor Make (GenerateFlowFile)" in command("diff", "flow.yaml")
    assert "+ connection" in command("apply", "flow.yaml", "--dry-run")
    said = command("apply", "flow.yaml")
    assert "the flow is at revision 1, 3 added" in said
    assert "penstock flow start" in said
    assert "nothing would change" in command("diff", "flow.yaml")
    file.write_text(FLOW.replace("3", "4"))
    assert "at revision 1, not 5" in command("apply", "flow.yaml", "--revision", "5", code=1)
    assert "\n    properties.batch_size: '3' → '4'" in command(
        "apply", "flow.yaml", "--revision", "1", "--start"
    )
    exported = command("export")
    assert exported.startswith("format: 1\nname: shell\n")
    as_json = json.loads(command("export", "--format", "json"))
    assert as_json["processors"]["Make"]["properties"] == {"batch_size": "4"}
    for text in (exported, json.dumps(as_json)):
        file.write_text(text)
        assert "nothing would change" in command("diff", "flow.yaml")
    answer = json.loads(command("diff", "flow.yaml", "--json"))
    assert answer.pop("owner") == answer.pop("previousOwner")
    expected = {
        "revision": 2,
        "running": True,
        "changes": [],
        "commentsChanged": False,
        "allRestart": False,
    }
    assert answer == expected
    assert "leave out --start" in command("apply", "flow.yaml", "--dry-run", "--start", code=2)


def test_apply_says_what_becomes_of_what_was_added(command: Command, file: Path) -> None:
    assert "no component runs yet; start with: penstock flow start" in command("apply", "flow.yaml")
    added = FLOW.replace("connections:", "labels: [one]\nconnections:")
    file.write_text(added)
    assert "start it" not in command("apply", "flow.yaml")
    file.write_text(added.replace("connections:", "funnels: [F]\nconnections:"))
    assert "added components are stopped; start" in command("apply", "flow.yaml")
    command("start")
    file.write_text(added.replace("connections:", "funnels: [G]\nconnections:"))
    assert "added components run, because everything was started" in command("apply", "flow.yaml")


def test_problems_have_their_places_as_compilers_print_them(command: Command, file: Path) -> None:
    file.write_text(FLOW.replace("LogAttribute", "LogAtribute").replace("to: Log", "to: Lag"))
    for words in (["apply"], ["diff"], ["validate"]):
        lines = command(*words, "flow.yaml", code=2).splitlines()
        assert lines[0].startswith("flow.yaml:4:15: processors.Log.type: ")
        assert "did you mean 'LogAttribute'?" in lines[0]
        assert lines[1].startswith("flow.yaml:6:30: connections[0].to: ")
        assert lines[-1] == "penstock: 2 problems in the flow; nothing was changed"
    answer = json.loads(command("validate", "flow.yaml", "--json", code=2))
    assert not answer["valid"]
    assert [(one["line"], one["column"]) for one in answer["problems"]] == [(4, 15), (6, 30)]
    assert json.loads(command("apply", "flow.yaml", "--json", code=2)) == answer
    file.write_bytes(b"name: \xff")
    assert command("validate", "flow.yaml", code=2).startswith("flow.yaml:1:7: ")
    assert "cannot be read" in command("apply", "nowhere.yaml", code=2)


def test_validate_says_which_checks_a_wrong_structure_leaves_out(
    command: Command, file: Path
) -> None:
    file.write_text(FLOW.replace("LogAttribute", "LogAtribute").replace("name: shell", "nam: x"))
    lines = command("validate", "flow.yaml", code=2).splitlines()
    assert "'name' is missing" in lines[0]
    assert not any("LogAtribute" in line for line in lines)
    assert lines[-1].endswith(
        "nothing was changed; processors, properties and connections are checked once this is"
        " correct"
    )
    answer = json.loads(command("validate", "flow.yaml", "--json", code=2))
    assert lines[-1].endswith(f"; {answer['note']}")


def test_a_file_that_is_no_flow_is_told_with_its_command(command: Command, file: Path) -> None:
    for text, said in (
        (
            "type: kafka\nspec: {}\n",
            "the spec of a supervisor, not a flow: submit it with penstock",
        ),
        ('{"type": "index_parallel"}', "a task, not a flow: submit it with penstock task submit"),
    ):
        file.write_text(text)
        for words in (["apply"], ["diff"], ["validate"]):
            shown = " ".join(command(*words, "flow.yaml", code=2).split())
            assert f"flow.yaml: is {said}" in shown
            assert shown.endswith("submit flow.yaml")
            answer = json.loads(command(*words, "flow.yaml", "--json", code=2))
            assert answer["valid"] is False
            [problem] = answer["problems"]
            message = problem.pop("message")
            assert problem == {"file": "flow.yaml", "line": 1, "column": 1, "path": ""}
            assert message.startswith(f"is {said}")


def test_validate_needs_no_server(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["flow", "validate", str(file), "--url", "http://127.0.0.1:1"]) == 0
    assert capfd.readouterr().out == f"{file}: flow shell is valid\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FLOW.encode())))
    assert run(["flow", "validate", "-", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["valid"] is True
    assert run(["flow", "status", "--url", "http://127.0.0.1:1"]) == 3


def test_components_are_run_once_started_and_stopped(command: Command, file: Path) -> None:
    command("apply", str(file))
    assert command("run-once", "Make") == "Make ran once\n"
    shown = command("status")
    assert "flow shell, revision 1: 0 of 10 threads busy" in shown
    assert "Make.success → Log" in shown
    assert "Make.success" not in command("status", "Log").splitlines()[2]
    assert "GenerateFlowFile" not in command("status", "Log")
    [connection] = json.loads(command("status", WAY, "--json"))["connections"]
    assert connection["queued"] == 3
    assert command("start", "Make") == "1 component is started\n"
    assert command("stop") == "2 components are stopped\n"
    assert json.loads(command("stop", "Log", "--json"))["stopped"]
    assert "unknown component or group 'Mike'" in command("start", "Mike", code=1)
    assert "no 'Mike'" in command("status", "Mike", code=1)
    assert command("run-once", "Mike", code=1)
    assert "abandoned" in command("terminate", "Make")


def test_status_shows_the_wait_of_a_processor(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    since = "2026-11-23T02:00:00.000Z"
    wait = {"dependency": "the broker", "work": "processor Send", "since": since, "tries": 12}
    send = {
        "id": "c",
        "name": "Send",
        "state": "running",
        "waits": [wait | {"error": "it is away"}],
    }
    answer = {"name": "f", "components": [send]}
    monkeypatch.setattr("penstock.services.cli.flow.flow_control.request_object", lambda *_: answer)
    assert run(["flow", "status", "Send"]) == 0
    line = f"waits for the broker since {since}, 12 tries (processor Send): it is away"
    assert line in capfd.readouterr().out


def test_queues_are_listed_searched_counted_and_dropped(command: Command, file: Path) -> None:
    command("apply", str(file))
    command("run-once", "Make")
    assert "Make.success → Log" in command("queue", "list")
    assert "3 shown of 3 queued" in command("queue", "list", WAY)
    first, *_ = json.loads(command("queue", "list", WAY, "--max", "1", "--json"))
    uuid = first["attributes"]["uuid"]
    found = json.loads(command("queue", "search", WAY, f"uuid={uuid}", "--json"))
    assert [one["id"] for one in found] == [first["id"]]
    assert "no such FlowFiles" in command("queue", "search", WAY, "uuid=x")
    assert "write NAME=VALUE" in command("queue", "search", WAY, "uuid", code=2)
    assert "and 2 more values" in command("queue", "count", WAY, "uuid", "--max", "1")
    assert json.loads(command("queue", "count", WAY, "uuid", "--json"))["values"] == 3
    assert "confirm with --yes" in command("queue", "drop", WAY, code=2)
    assert command("queue", "drop", WAY, f"uuid={uuid}", "-y").startswith("1 FlowFile dropped")
    assert json.loads(command("queue", "drop", WAY, "--yes", "--json"))["dropped"] == 2
    assert "unknown connection" in command("queue", "list", "x -> y", code=1)


def test_bulletins_name_their_component(
    command: Command, file: Path, controller: FlowController
) -> None:
    command("apply", str(file))
    assert command("bulletins") == "no bulletins\n"
    ids = {one.name: one.id for one in controller.status().components}
    logging.getLogger("penstock.flow.test").warning("it leaks", extra={"component": ids["Log"]})
    assert "it leaks" in command("bulletins", "Log")
    [one] = json.loads(command("bulletins", "--json"))
    assert one["component"] == ids["Log"]
    assert "no bulletins" in command("bulletins", "Make")
    assert "no bulletins" in command("bulletins", "--after", str(one["number"]))
    assert "no component" in command("bulletins", "Mike", code=1)


def test_sizes_for_people() -> None:
    shown = {0: "0 B", 1023: "1,023 B", 1024: "1.0 KB", 157_286_400: "150 MB", 1 << 50: "1,024 TB"}
    assert {count: size(count) for count in shown} == shown


def test_state_is_shown_and_cleared(command: Command, controller: FlowController) -> None:
    (Path.cwd() / "f.yaml").write_text(FLOW)
    command("apply", "f.yaml")
    assert "no state" in command("state", "Make")
    controller._parts._states[controller.status().components[0].id].set({"at": "7"})
    assert "at" in command("state", "Make")
    assert json.loads(command("state", "Make", "--json")) == {"at": "7"}
    assert "1 entry cleared" in command("state", "Make", "--clear", "--yes")
    assert "Nobody" in command("state", "Nobody", code=1)


def test_a_whole_flow_runs_once(command: Command) -> None:
    (Path.cwd() / "f.yaml").write_text(FLOW)
    command("apply", "f.yaml")
    assert "2 components ran once" in command("run-once", "/")


def test_content_of_a_flowfile_is_read(command: Command, controller: FlowController) -> None:
    text = FLOW.replace("batch_size: 3", "custom_text: some text")
    (Path.cwd() / "f.yaml").write_text(text)
    command("apply", "f.yaml")
    command("run-once", "Make")
    (flowfile,) = controller.queue(WAY).listing.first()
    assert command("queue", "content", WAY, str(flowfile.id)) == "some text"
    assert "9 bytes written" in command("queue", "content", WAY, str(flowfile.id), "-o", "c.txt")
    assert (Path.cwd() / "c.txt").read_bytes() == b"some text"
    assert "cannot be written" in command(
        "queue", "content", WAY, str(flowfile.id), "-o", "none/c.txt", code=2
    )
    assert "no FlowFile 999" in command("queue", "content", WAY, "999", code=1)

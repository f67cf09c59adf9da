"""The rights that a flow needs, and who may see and operate one."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes, flow_routes
from penstock.services.api.flow.flow_access import required_by_flow
from penstock.services.processors import PROCESSORS
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api

CODE, EXTERNAL = "run-code system:code", "read-external system:inputs"
EXTERNAL_TYPES = (
    *("FetchFile", "GetFile", "InvokeHTTP", "ListFiles", "ListenHTTP", "PutFile", "TailFile"),
    "SparkSQL",
)
NEEDED: dict[str, set[str]] = {
    **{kind: {EXTERNAL} for kind in EXTERNAL_TYPES},
    "SparkScript": {CODE},
    "ConsumeTopic": {"read channel:clicks/c"},
    "PublishTopic": {"write topic:clicks"},
    "PutDatasource": {"write datasource:clicks"},
    "LookupAttribute": {"read lookup:countries"},
    "LookupRecord": {"read lookup:countries"},
}
OTHERS = {
    *("ConvertRecord", "DetectDuplicate", "EvaluateJsonPath", "GenerateFlowFile"),
    *("LogAttribute", "MergeRecord", "Notify", "RetryFlowFile", "RouteOnAttribute"),
    *("RouteOnContent", "SplitRecord", "UpdateAttribute", "ValidateRecord", "Wait"),
}
CONNECTED = "funnels: [a, b], connections: [{{from: a, to: b, prioritizers: ['{}']}}]"
NAMES = {
    "ConsumeTopic": "{topic: clicks, channel: c}",
    "PublishTopic": "{topic: clicks}",
    "PutDatasource": "{datasource: clicks}",
    "LookupAttribute": "{lookup_name: countries}",
    "LookupRecord": "{lookup_name: countries}",
}


def needed(text: str) -> set[str]:
    found = {f"{action} {resource}" for action, resource in required_by_flow(read_flow(text).flow)}
    assert "manage flow:f" in found
    return found - {"manage flow:f"}


def test_a_prioritizer_of_users_is_code() -> None:
    connections = "connections:\n  - {from: A, to: B, prioritizers: [PRIORITIZER]}\n"
    two = "name: f\nprocessors:\n  A: {type: GenerateFlowFile}\n  B: {type: LogAttribute}\n"
    assert needed(two + connections.replace("PRIORITIZER", "mine:Mine")) == {CODE}
    assert not needed(two + connections.replace("PRIORITIZER", "OldestFlowFileFirstPrioritizer"))


def flow_of(kind: str, properties: str = "{}") -> str:
    return f"name: f\nprocessors:\n  P: {{type: {kind}, properties: {properties}}}\n"


@pytest.mark.parametrize("kind", PROCESSORS)
def test_each_processor_of_penstock(kind: str) -> None:
    assert needed(flow_of(kind, NAMES.get(kind, "{}"))) == NEEDED.get(kind, set())
    assert (kind in NEEDED) != (kind in OTHERS)


@pytest.mark.parametrize(
    ("kind", "properties", "rights"),
    [
        ("my_module:Mine", "{}", {CODE}),
        (PROCESSORS["PublishTopic"], "{topic: clicks}", {"write topic:clicks"}),
        (PROCESSORS["SparkScript"], "{}", {CODE}),
        ("InvokeHTTP", "{token: 'secret://door'}", {EXTERNAL, "read secret:door"}),
        ("PublishTopic", "{topic: 'clicks-${name}'}", {CODE}),
        ("PublishTopic", "{topic: '#{name}'}", {CODE}),
        ("PublishTopic", "{}", {CODE}),
        ("ConsumeTopic", "{topic: clicks, channel: '#{c}'}", {CODE}),
        ("PutDatasource", "{datasource: '${d}'}", {CODE}),
        (
            "PublishTopic",
            "{topic: clicks, broker_url: 'http://h:4151'}",
            {"write topic:clicks", EXTERNAL},
        ),
    ],
)
def test_what_is_not_known_before_the_flow_runs_is_code(
    kind: str, properties: str, rights: set[str]
) -> None:
    assert needed(flow_of(kind, properties)) == rights


@pytest.mark.parametrize(
    ("more", "rights"),
    [
        ("parameters: {P: {file: /etc/hostname}}", {EXTERNAL}),
        ("parameters: {P: {file: /etc/hostname, sensitive: false}}", {EXTERNAL}),
        ("parameters: {P: {env: HOME}}", {EXTERNAL}),
        ("parameter_contexts: {C: {parameters: {P: {env: HOME}}}}", {EXTERNAL}),
        ("groups: {G: {parameters: {P: {file: /etc/hostname}}}}", {EXTERNAL}),
        ("groups: {G: {groups: {H: {parameters: {P: {env: A}}}}}}", {EXTERNAL}),
        ("parameters: {P: a}", set()),
        ("parameters: {P: {secret: door}}", {"read secret:door"}),
        (CONNECTED.format("my_module:Mine"), {CODE}),
        (CONNECTED.format("FirstInFirstOutPrioritizer"), set()),
        (f"groups: {{G: {{{CONNECTED.format('my_module:Mine')}}}}}", {CODE}),
    ],
)
def test_parameters_and_prioritizers(more: str, rights: set[str]) -> None:
    assert needed(f"{{name: f, {more}}}") == rights


def test_processors_in_groups_count() -> None:
    flow = "name: f\ngroups: {G: {groups: {H: {processors: {P: {type: SparkScript}}}}}}\n"
    assert needed(flow) == {CODE}


RULES = """
[roles.author]
allow = ["read,write,manage flow:*", "write topic:clicks"]
[roles.other]
allow = ["read,write,manage flow:other"]
"""
VALIDATE = [("POST", "/flow/validate")]
FLOW = "name: f\nprocessors: {Make: {type: GenerateFlowFile, auto_terminated: [success]}}\n"


@pytest.fixture
def ask(tmp_path: Path):
    kit = AccessFolderKit(tmp_path / "access", RULES)
    for role in ("admin", "author", "other", "operator"):
        kit.add_user(role, role)
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    app = application(FlowRoutes(lambda: controller, SystemClock()).routes(), access=kit.control)

    def ask(role: str, method: str, path: str, body: str = "") -> int:
        headers = as_principal(kit.control, f"user:{role}", role)
        return api(method, path, headers=headers, content=body).status_code

    with closing(Api(app)) as api:
        yield ask
    controller.close()


def test_a_flow_is_replaced_only_by_who_may_manage_both(ask) -> None:
    assert ask("admin", "PUT", "/flow", FLOW) == 200
    assert ask("other", "PUT", "/flow", FLOW.replace("name: f", "name: other")) == 403
    assert ask("other", "GET", "/flow") == 403
    assert ask("author", "GET", "/flow") == 200
    assert ask("author", "POST", "/flow/stop") == 200
    assert ask("viewer", "GET", "/flow/status") == 200
    assert ask("viewer", "POST", "/flow/start") == 403


def test_the_first_flow_of_a_server_needs_the_right_on_its_own_name_alone(ask) -> None:
    other = FLOW.replace("name: f", "name: other")
    assert ask("other", "PUT", "/flow", FLOW) == 403
    assert ask("other", "POST", "/flow/validate", other) == 200
    assert ask("other", "PUT", "/flow?dryRun=true", other) == 200
    assert ask("other", "PUT", "/flow?revision=1", other) == 403
    assert ask("other", "PUT", "/flow", other) == 200
    assert ask("other", "GET", "/flow") == 200
    assert ask("author", "PUT", "/flow", FLOW) == 200
    assert ask("other", "PUT", "/flow?revision=0", other) == 403
    assert ask("other", "POST", "/flow/validate", other) == 403


def test_the_first_flow_replaces_no_flow_that_another_request_applies_meanwhile(
    ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FLOW.replace("name: f", "name: other")
    read = flow_routes.read_flow

    def read_later(*arguments: object) -> object:
        monkeypatch.setattr(flow_routes, "read_flow", read)
        assert ask("author", "PUT", "/flow", FLOW) == 200
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(flow_routes, "read_flow", read_later)
    assert ask("other", "PUT", "/flow", other) == 400
    assert ask("other", "GET", "/flow") == 403


def test_an_author_without_the_rights_of_a_processor_changes_nothing(ask) -> None:
    assert ask("author", "PUT", "/flow", FLOW) == 200
    file = flow_of("GetFile", "{directory: /etc}")
    publish = flow_of("PublishTopic", "{topic: other}")
    for flow, path in itertools.product((file, publish), ("/flow", "/flow?dryRun=true")):
        assert ask("author", "PUT", path, flow) == 403


def test_no_author_reads_files_of_the_host_by_parameters(ask, tmp_path: Path) -> None:
    """Also the messages of a check would show them, or whether they exist."""
    assert ask("author", "PUT", "/flow", FLOW) == 200
    (tmp_path / "word").write_text("hunter2")
    for place in (tmp_path / "word", tmp_path / "none"):
        told = f"parameters: {{P: {{file: '{place}', sensitive: false}}}}\n"
        make = "{batch_size: '#{P}'}"
        flow = FLOW.replace("type: GenerateFlowFile", f"type: GenerateFlowFile, properties: {make}")
        for method, path in (("PUT", "/flow"), ("PUT", "/flow?dryRun=true"), *VALIDATE):
            assert ask("author", method, path, told + flow) == 403
    assert ask("author", "POST", "/flow/validate", FLOW) == 200

"""Every place where code of users runs is in the table, so that it requires the right to."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock
from penstock.flow.graph.flow_model import Flow
from penstock.flow.processor.processor import declared_properties
from penstock.services.processors import PROCESSORS, code_places, code_uses, registry_for

ROOT = Path(penstock.__file__).parent
# Modules that import or call what a user names, and the place of each in the table.
LOADERS = {
    "flow/prioritizers.py": ("", "prioritizers"),
    "flow/processor/processor_registry.py": ("", "type"),
    "spark/flow/script.py": ("SparkScript", "function"),
}
# Modules that run code or commands of their own choice; nothing in a flow, a spec or a statement
# reaches their arguments.
OWN = {
    "fastpath/engine_pool.py",
    "flow/user_modules.py",  # the loader itself
    "services/cli/server.py",
    "services/roles/__main__.py",
    "services/roles/peon.py",
    "services/host/fork_server.py",
    "services/host/process.py",
    "services/host/provenance_process.py",
    "services/host/query_isolation.py",
    "services/host/query_jail.py",
    "services/host/server_process.py",
    "services/sampler_process.py",
    "spark/connect/light_client.py",
    "spark/connect/python_daemon.py",
    "spark/connect/spark_server.py",
    "storage/secrets/secret_sources.py",
}
LOADS = {"load", "import_module", "__import__", "run_module", "run_path", "exec_module"}
RUNS = {
    "Popen",
    "run",
    "call",
    "execv",
    "execve",
    "execvp",
    "system",
    "popen",
    "create_subprocess_exec",
}
RUNS |= {"create_subprocess_shell", "check_output", "check_call", "posix_spawn", "fork", "forkpty"}
BUILTINS = {"eval", "exec", "compile", "__import__"}


def runs_code(node: ast.Call) -> bool:
    match node.func:
        case ast.Name(id=name):
            return name in BUILTINS or name in {"Popen", "import_module"}
        # Of `flow.user_modules.FlowModules`.
        case ast.Attribute(
            attr="load", value=ast.Name(id="modules") | ast.Attribute(attr="modules")
        ):
            return True
        case ast.Attribute(attr="load", value=ast.Call(func=ast.Attribute(attr="get"))):
            return True
        case ast.Attribute(attr=name, value=ast.Name(id=module)):
            return name in RUNS | LOADS and module in {"importlib", "os", "subprocess", "runpy"}
    return False


def test_each_module_that_runs_code_is_known() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Call) and runs_code(node) for node in ast.walk(tree)):
            found.add(str(path.relative_to(ROOT)))
    assert found >= OWN, "remove modules that run no code"
    assert found - OWN == LOADERS.keys(), "add the place to `services.processors.code_places`"


def test_each_place_has_its_loader() -> None:
    places = {(place.processor, place.field) for place in code_places()}
    assert places == set(LOADERS.values())


def test_properties_that_name_code_are_places() -> None:
    registry = registry_for(())
    named = {
        (name, one.name)
        for name in PROCESSORS
        for one in declared_properties(registry.find(name)).values()
        if one.facts().type == "import path"
    }
    assert named == {(place.processor, place.field) for place in code_places() if place.processor}


def flow(processor: str, prioritizer: str = "FirstInFirstOutPrioritizer") -> Flow:
    inner = {
        "processors": {
            "a": {"type": processor, "properties": {"function": "jobs.clean:run"}},
            "b": {"type": "LogAttribute"},
        },
        "connections": [{"source": "a", "destination": "b", "prioritizers": [prioritizer]}],
    }
    return Flow.model_validate({"name": "f", "groups": {"g": inner}})


@pytest.mark.parametrize(
    ("given", "uses"),
    [
        (flow("GetFile"), []),
        (flow(PROCESSORS["GetFile"]), []),
        (flow("SparkSQL"), []),
        (flow("GetFile", "org.apache.nifi.prioritizer.FirstInFirstOutPrioritizer"), []),
        (flow("SparkScript"), [("g/a", "function", "jobs.clean:run")]),
        (flow(PROCESSORS["SparkScript"]), [("g/a", "function", "jobs.clean:run")]),
        (flow("jobs.mine:Processor"), [("g/a", "type", "jobs.mine:Processor")]),
        (flow("OfAPackage"), [("g/a", "type", "OfAPackage")]),
        (flow("GetFile", "jobs.order:Own"), [("g/a -> b", "prioritizers", "jobs.order:Own")]),
    ],
)
def test_a_flow_needs_the_right_for_code_that_it_names(
    given: Flow, uses: list[tuple[str, str, str]]
) -> None:
    found = [(use.component, use.place.field, use.code) for use in code_uses(given)]
    assert [(name.replace("→", "->"), field, code) for name, field, code in found] == uses

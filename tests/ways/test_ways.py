"""The five ways through the code: how many modules each touches, and which call each other.

Also the imports of all modules: no two of them import each other.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import cohesion
from tests.ways.ways import RUNNERS, SOURCE, WAYS, trace_alone

# The maximum of several measured runs, plus one: the order of threads decides whether a task's log
# is uploaded, and the broker's timers run, during the way. Decision 64 has the aims, which are 35,
# 60, 45, 45 and 30 modules and no pairs. Since then, each request is authenticated, decided and
# audited (`core.access`): thirteen modules more for a task, and five for a message. A publish is
# logged (`storage.metadata.publish.publish_log`), and uploads are checked: two more for a task.
# `PYTHONPATH=scripts python -m tests.ways.ways` prints the figures.
LIMITS = {
    "a task from POST to its end": (94, 0),
    "a flow": (83, 0),
    "a streaming task": (88, 0),
    "a batch task": (84, 0),
    "a message from PUB to FIN": (47, 0),
}


# Rings of three modules, each of which calls the next, and why they stay.
RINGS = {
    ("broker.channel.channel", "broker.channel.delivery", "broker.tcp.connection_consumer"): (
        "a channel delivers to consumers through a protocol, and a client's FIN calls the channel"
    ),
    ("broker.channel.channel", "broker.channel.delivery", "broker.topics.topic"): (
        "a channel reads messages of its topic through a protocol, and the topic announces new ones"
    ),
}


def test_no_two_modules_import_each_other() -> None:
    modules = cohesion.read_modules(cohesion.ROOT / "src")
    assert cohesion.pairs_that_import_each_other(modules) == []


@pytest.mark.parametrize("name", WAYS)
def test_a_way_crosses_no_more_modules_than_before(name: str, tmp_path: Path) -> None:
    first, second = (tmp_path / number for number in ("first", "second"))
    first.mkdir()
    way = trace_alone(name, first)
    modules, pairs = LIMITS[name]
    crossed = way.modules
    if len(crossed) > modules:
        # A timer that was due meanwhile, on a machine under load, belongs to no way.
        second.mkdir()
        crossed &= trace_alone(name, second).modules
    assert len(crossed) <= modules, sorted(crossed)
    assert len(way.pairs) <= pairs, way.pairs
    assert not {ring for ring in way.rings if ring not in RINGS}
    for a, b in way.pairs_through_runners:
        runner, caller = (a, b) if a in RUNNERS else (b, a)
        if caller not in RUNNERS:
            assert not _imports(runner, caller), f"{runner} knows its caller {caller}"


def _imports(importer: str, imported: str) -> bool:
    tree = ast.parse(Path(SOURCE, *importer.split(".")).with_suffix(".py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if f"penstock.{imported}" in (node.module, *names):
                return True
        elif isinstance(node, ast.Import) and f"penstock.{imported}" in {
            a.name for a in node.names
        }:
            return True
    return False

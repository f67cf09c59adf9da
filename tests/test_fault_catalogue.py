"""The catalogue of faults fits the present code: each can be applied, and names its promise."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.simulation.mutation.catalogue import ROOT, VERDICTS, Fault, StaleFault, load

pytestmark = pytest.mark.lint

FAULTS = load()
LINES_MAX = 10
PARTS = {
    "allocation",
    "batch",
    "broker",
    "channel",
    "duties",
    "flow_repository",
    "lockbox",
    "membership",
    "overlord",
    "publish",
    "runner",
    "supervisor",
    "task",
    "timeline",
    "worker",
}


def problems(fault: Fault) -> list[str]:
    """Return what is wrong with a fault."""
    try:
        ast.parse(fault.applied())
    except (StaleFault, SyntaxError, OSError) as error:
        return [f"{fault.id}: {error}"]
    found = []
    if not (ROOT / fault.promise).is_file():
        found.append(f"{fault.id}: there is no document {fault.promise}")
    if not fault.thought.endswith(".") or not fault.breaks.endswith("."):
        found.append(f"{fault.id}: its thought and what it breaks must be sentences")
    if fault.verdict not in VERDICTS or bool(fault.verdict) != bool(fault.reason):
        found.append(f"{fault.id}: a verdict is one of {sorted(VERDICTS)}, and has a reason")
    return found


def changed_lines(fault: Fault) -> int:
    """Return how many lines of the product a fault changes."""
    old, new = Counter(fault.old.splitlines()), Counter(fault.new.splitlines())
    return max((old - new).total(), (new - old).total())


def test_every_fault_fits_the_code_and_names_a_promise() -> None:
    assert [text for fault in FAULTS for text in problems(fault)] == []


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(one.id for one in FAULTS).items() if count > 1] == []


def test_faults_are_small() -> None:
    assert {one.id: changed_lines(one) for one in FAULTS if changed_lines(one) > LINES_MAX} == {}


def test_every_part_has_faults() -> None:
    counts = Counter(one.part for one in FAULTS)
    assert counts.keys() == PARTS
    assert min(counts.values()) >= 10
    assert counts.total() >= 150

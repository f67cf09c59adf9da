"""Flows written in Python are the flows that YAML gives."""

from __future__ import annotations

import pytest

from penstock.core.errors import Conflict, InvalidRequest
from penstock.flow.graph.builder import FlowBuilder
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from tests.flow.graph_kit import TYPES, GetFile

YAML = """
name: flights
version: 2
parameter_context: prod
parameters: {folder: {value: /data, description: Where files are.}}
parameter_contexts:
  prod: {parameters: {word: {env: WORD}}, inherits: base}
  base: {parameters: {a: 1}, description: Common.}
processors:
  Read: {type: GetFile, properties: {directory: '#{folder}', Batch Size: 5}, schedule: every 10 sec}
  Put: {type: Put, properties: {user: me, password: '#{word}'}}
funnels: [Bad]
connections:
- {from: Read.success, to: Clean/in}
- {from: Clean/out, to: Put, prioritizers: PriorityAttributePrioritizer, back_pressure_count: 5}
- {from: Clean/bad, to: Bad}
- {from: Bad, to: Put}
groups:
  Clean:
    max_concurrent_tasks: 4
    input_ports: [in]
    output_ports: [out, bad]
    processors:
      Check: {type: Check, properties: {strict: true, columns: [a, b]}}
    connections:
    - {from: in, to: Check}
    - {from: Check.valid, to: out}
    - {from: Check.invalid, to: bad, name: rest}
labels: [{text: Flights, position: [1, 2]}]
"""


def test_both_give_the_same_model() -> None:
    flow = FlowBuilder("flights", version="2", parameter_context="prod")
    flow.parameter("folder", "/data", description="Where files are.")
    flow.context("prod", {"word": {"env": "WORD"}}, inherits=("base",))
    flow.context("base", {"a": 1}, description="Common.")
    read = flow.processor(
        "Read", GetFile, {"directory": "#{folder}", "Batch Size": 5}, schedule="every 10 sec"
    )
    clean = flow.group("Clean", max_concurrent_tasks=4)
    put = flow.processor("Put", "Put", {"user": "me", "password": "#{word}"})
    bad = flow.funnel("Bad")
    check = clean.processor("Check", "Check", {"strict": True, "columns": ["a", "b"]})
    way_in, way_out = clean.input_port("in"), clean.output_port("out")
    way_bad = clean.output_port("bad")

    read.success >> way_in
    way_out.to(put, prioritizers="PriorityAttributePrioritizer", back_pressure_count=5)
    way_bad >> bad
    bad >> put
    way_in >> check
    check.valid >> way_out
    (check["invalid"] >> way_bad).options(name="rest")
    flow.label("Flights", (1, 2))

    built = flow.build()
    assert built == read_flow(YAML).flow
    assert validate(built, TYPES) == []


def test_many_relationships_are_one_connection() -> None:
    flow = FlowBuilder("x")
    check = flow.processor("Check", "Check")
    check["valid", "invalid"] >> flow.funnel("All")
    (connection,) = flow.build().connections
    assert connection.relationships == ("invalid", "valid")


def test_groups_side_by_side_and_deep() -> None:
    flow = FlowBuilder("x")
    one, two = flow.group("One"), flow.group("Two")
    one.output_port("out") >> two.input_port("in")
    (connection,) = flow.build().connections
    assert (connection.source, connection.destination) == ("One/out", "Two/in")
    deep = one.group("Deep").input_port("in")
    with pytest.raises(InvalidRequest, match="groups that are not neighbours"):
        flow.funnel("f") >> deep


def test_a_name_is_taken_once() -> None:
    flow = FlowBuilder("x")
    flow.processor("A", "T")
    for add in (flow.funnel, flow.input_port, flow.output_port, flow.group):
        with pytest.raises(Conflict, match="component 'A' already"):
            add("A")
    flow.parameter("p", 1)
    with pytest.raises(Conflict, match="parameter 'p' already"):
        flow.secret("p", env="P")
    flow.context("c", {})
    with pytest.raises(Conflict, match="parameter context 'c' already"):
        flow.context("c", {})


def test_what_does_not_fit_is_told_with_its_path() -> None:
    flow = FlowBuilder("x")
    flow.processor("A", "T", {"p": {"no": 1}}, concurrent_tasks=0)
    flow.secret("s")
    with pytest.raises(InvalidFlow) as error:
        flow.build()
    assert [str(problem) for problem in error.value.problems] == [
        "parameters.s: a parameter needs exactly one of value, env, file and secret",
        "processors.A.concurrent_tasks: must be at least 1",
        "processors.A.properties.p: must be a text, a number, true, false or a list of texts",
    ]

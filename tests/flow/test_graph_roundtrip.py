"""What is exported is read back as it was; the same flow is the same text."""

from __future__ import annotations

from graph_kit import TYPES
from graph_strategies_kit import FLOWS
from hypothesis import given

from penstock.flow.graph.diff import describe, diff
from penstock.flow.graph.export import to_json, to_yaml, without_secrets
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow


@given(FLOWS)
def test_any_flow_is_exported_and_read_back_judged_and_compared(flow: Flow) -> None:
    # One test for all, as making such flows takes longer than all that is done to them.
    yaml, json = to_yaml(flow), to_json(flow)
    assert read_flow(yaml).flow == flow
    assert read_flow(json).flow == flow
    assert to_yaml(read_flow(yaml).flow) == yaml
    assert to_json(read_flow(json).flow) == json
    assert all(problem.message for problem in validate(flow, TYPES))
    assert diff(flow, flow) == []
    shown = without_secrets(flow, TYPES)
    assert without_secrets(shown, TYPES) == shown
    changes = diff(flow, shown)
    assert bool(describe(changes)) == bool(changes)


def test_the_export_is_as_short_as_a_person_would_write_it() -> None:
    text = """\
format: 1
name: flights
parameters:
  folder: /data
  password:
    env: PASSWORD
processors:
  Read:
    type: GetFile
    properties:
      directory: '#{folder}'
    schedule: every 10 sec
    auto_terminated:
    - failure
    retry:
      success: 3
funnels:
- All
connections:
- from: Read.success
  to: All
  back_pressure_count: 5
labels:
- Reads files
"""
    assert to_yaml(read_flow(text).flow) == text


def test_what_is_sensitive_is_not_exported() -> None:
    flow = read_flow(
        "name: x\nprocessors:\n"
        "  A: {type: Put, properties: {password: hunter2, user: me}}\n"
        "  B: {type: Put, properties: {password: '#{secret}'}}\n"
        "  C: {type: Unknown, properties: {a: hunter2}}\n"
        "groups: {G: {processors: {A: {type: Put, properties: {password: hunter2}}}}}\n"
    ).flow
    shown = without_secrets(flow, TYPES)
    assert "hunter2" not in repr(flow)
    assert "hunter2" not in to_yaml(shown) + to_json(shown) + describe(diff(shown, shown))
    assert shown.processors["A"].properties == {"user": "me"}
    assert shown.processors["B"] == flow.processors["B"]

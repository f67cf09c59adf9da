"""What differs between two flows, what has to stop for it, and ids that hold on."""

from __future__ import annotations

from penstock.flow.graph.diff import ChangeKind, FlowChange, describe, diff
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.yaml_reader import read_flow

BASE = """name: x
parameters: {folder: /data, word: {env: WORD}}
processors:
  Read: {type: GetFile, properties: {directory: '#{folder}'}}
  Put: {type: Put, comments: old}
  Other: {type: Put}
connections:
- {from: Read.success, to: Put}
"""


def changes(old: str, new: str, *, base: str = BASE) -> list[FlowChange]:
    assert old in base
    return diff(read_flow(base).flow, read_flow(base.replace(old, new)).flow)


def ids(text: str = BASE) -> dict[str, str]:
    index = FlowIndex.of(read_flow(text).flow)
    return {str(one): one.id for one in (*index.components, *index.connections)}


def test_nothing_differs() -> None:
    assert changes("name: x", "name: x") == []
    assert changes("old", "old") == []


def test_a_property_stops_its_processor_alone() -> None:
    (change,) = changes("'#{folder}'", "/other")
    assert change.stops == (ids()["Read"],)
    assert describe([change]) == (
        "~ processor Read (GetFile) (stops and starts again)\n"
        "    properties.directory: '#{folder}' → '/other'"
    )


def test_comments_stop_nothing() -> None:
    (change,) = changes("comments: old", "comments: new")
    assert change.stops == ()
    assert describe([change]) == "~ processor Put (Put)\n    comments: 'old' → 'new'"


def test_schedules_and_other_fields() -> None:
    (change,) = changes(
        "comments: old",
        "comments: old, schedule: every 10 sec, retry: {a: 3}, auto_terminated: [b]",
    )
    assert [str(field.field) for field in change.fields] == [
        "schedule", "auto_terminated", "retry.a",
    ]  # fmt: skip
    assert change.fields[0].old == "event"
    assert change.fields[0].new == "every 10 sec"


def test_a_parameter_changes_what_names_it() -> None:
    (change,) = changes("/data", "/more")
    assert change.stops == (ids()["Read"],)
    assert describe([change]).endswith("parameter folder: '/data' → '/more'")


def test_limits_of_a_connection_change_while_it_runs() -> None:
    (change,) = changes("to: Put}", "to: Put, back_pressure_count: 5, prioritizers: A}")
    assert change.stops == ()
    assert change.kind is ChangeKind.CHANGED
    assert {field.field for field in change.fields} == {"back_pressure_count", "prioritizers"}


def test_relationships_of_a_connection_stop_its_ends() -> None:
    (change,) = changes("from: Read.success", "from: Read, relationships: [success, more]")
    assert set(change.stops) == {ids()["Read"], ids()["Put"]}
    assert [field.field for field in change.fields] == ["relationships"]


def test_other_ends_are_another_connection() -> None:
    removed, added = changes("to: Put}", "to: Other}")
    assert (removed.kind, added.kind) == (ChangeKind.REMOVED, ChangeKind.ADDED)
    assert removed.must_be_empty
    assert not added.must_be_empty
    assert describe([removed, added]) == (
        "- connection Read.success → Put (it must be empty)\n+ connection Read.success → Other"
    )


def test_with_an_id_a_connection_keeps_its_queue() -> None:
    id_ = "0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10"
    base = BASE.replace("to: Put}", f"to: Put, id: {id_}}}")
    (change,) = changes(f"to: Put, id: {id_}", f"to: Other, id: {id_}", base=base)
    assert change.id == id_
    assert set(change.stops) == {ids()["Read"], ids()["Put"], ids()["Other"]}
    assert [(field.field, field.old, field.new) for field in change.fields] == [
        ("to", "Put", "Other")
    ]


def test_a_name_makes_the_id_unless_one_is_given() -> None:
    assert [change.kind for change in changes("Other:", "Another:")] == [
        ChangeKind.REMOVED, ChangeKind.ADDED,
    ]  # fmt: skip
    id_ = ids()["Read"]
    base = BASE.replace("{type: GetFile,", f"{{type: GetFile, id: {id_},")
    renamed = base.replace("Read", "Load")
    assert ids(base) == ids()
    assert sorted(ids(renamed).values()) == sorted(ids().values())
    (change,) = diff(read_flow(base).flow, read_flow(renamed).flow)
    assert (change.fields[0].field, change.stops) == ("name", ())


def test_a_group_with_an_id_keeps_the_ids_in_it() -> None:
    text = "name: x\ngroups: {G: {id: %s, processors: {A: {type: T}}, groups: {H: {funnels: [f]}}}}"
    text %= "0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10"
    one, other = ids(text), ids(text.replace("G:", "New:"))
    assert list(one.values()) == list(other.values())
    assert list(other) == ["New/A", "New/H/f"]


def test_ids_are_the_same_for_ever() -> None:
    assert ids("name: x\nprocessors: {A: {type: T}}") == {
        "A": "165d04f0-0e2b-5a93-bc4c-c8f87f9e5360"
    }

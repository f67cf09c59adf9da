"""Validation: every problem, each at its place with its words."""

# Expected messages stand here as they are printed.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import pytest

from penstock.flow.graph.builder import FlowBuilder
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from tests.flow.graph_kit import TYPES, problems

HEAD = """name: x
parameters: {folder: /data, size: '3', secret: {env: S}}
processors:
  Read: {type: GetFile, properties: {directory: /d}}
  Check: {type: Check, auto_terminated: [invalid]}
  Put: {type: Put}
connections:
- {from: Read.success, to: Check}
- {from: Check.valid, to: Put}
"""


def with_processor(fields: str, name: str = "Put") -> list[str]:
    """Replace a processor's line (6: Put) and validate."""
    old = next(line for line in HEAD.splitlines() if line.startswith(f"  {name}:"))
    return problems(HEAD.replace(old, f"  {name}: {fields}"))


def with_connection(fields: str) -> list[str]:
    """Add a connection in line 10."""
    return problems(f"{HEAD}- {fields}\n")


def test_the_base_is_right() -> None:
    assert problems(HEAD) == []


PROCESSORS = {
    "{type: Putt}": "f.yaml:6:15: processors.Put.type: unknown processor type 'Putt'; did you "
    "mean 'Put'?",
    "{type: Zebra}": "f.yaml:6:15: processors.Put.type: unknown processor type 'Zebra'; "
    "`penstock processor list` shows all of them",
    "{type: Put, properties: {urk: a}}": "f.yaml:6:33: processors.Put.properties.urk: Put has no "
    "property 'urk'; did you mean 'url'?",
    "{type: Put, properties: {zebra: a}}": "f.yaml:6:33: processors.Put.properties.zebra: Put "
    "has no property 'zebra'; its properties: url, user, "
    "password",
    "{type: Put, properties: {password: clear}}": "f.yaml:6:43: "
    "processors.Put.properties.password: this "
    "property is sensitive: use only a sensitive "
    "parameter, #{name}, or a secret, secret://NAME",
    "{type: Put, properties: {password: 'secret://a b'}}": "f.yaml:6:43: "
    "processors.Put.properties.password: invalid name of a secret: use 1 to 128 of the "
    "characters a-z, A-Z, 0-9, . _ - and begin with a letter or a digit",
    "{type: Put, properties: {url: 'secret://shop'}}": "f.yaml:6:38: "
    "processors.Put.properties.url: this value is shown, so it must not name a secret: use a "
    "sensitive property",
    "{type: Put, properties: {password: 'x#{secret}'}}": "f.yaml:6:43: "
    "processors.Put.properties.password: "
    "this property is sensitive: use only "
    "a sensitive parameter, #{name}, or a secret, secret://NAME",
    "{type: Put, properties: {password: '#{folder}'}}": "f.yaml:6:43: "
    "processors.Put.properties.password: "
    "this property is sensitive, but "
    "parameter 'folder' is not: define it "
    "by secret, env or file",
    "{type: Put, properties: {password: '#{sekret}'}}": "f.yaml:6:43: "
    "processors.Put.properties.password: "
    "unknown parameter 'sekret'; did you "
    "mean 'secret'?",
    "{type: Put, properties: {url: '#{secret}'}}": "f.yaml:6:38: processors.Put.properties.url: "
    "parameter 'secret' is sensitive, but this "
    "value is shown: use another parameter",
    "{type: Put, properties: {url: '#{zebra}'}}": "f.yaml:6:38: processors.Put.properties.url: "
    "unknown parameter 'zebra'; declare it under "
    "parameters",
    "{type: Put, properties: {url: '#{folder'}}": "f.yaml:6:38: processors.Put.properties.url: "
    "this reference is not closed: write #{name}, "
    "or ##{ for the characters themselves",
    "{type: Put, properties: {user: me}}": "f.yaml:6:39: processors.Put.properties.user: needs a "
    "password, too: give both",
    "{type: Put, auto_terminated: [done]}": "f.yaml:6:37: processors.Put.auto_terminated: Put "
    "has no relationship 'done'; its relationships: none",
    "{type: Put, retry: {done: 3}}": "f.yaml:6:34: processors.Put.retry.done: Put has no "
    "relationship 'done'; its relationships: none",
    "{type: Put, retry: {done: {max_backoff: soon}}}": None,
    "{type: Put, schedule: every blue moon}": "f.yaml:6:30: processors.Put.schedule.period: "
    "'blue moon' is not a period: write a number and "
    "a unit, such as 10 sec, 1.5 hours or 100 ms",
    "{type: Put, schedule: {period: 1 s}}": "f.yaml:6:39: processors.Put.schedule.period: an "
    "event driven processor has no period: remove it, "
    "or write every PERIOD",
    "{type: Put, schedule: {catch_up: true}}": "f.yaml:6:30: processors.Put.schedule: zone and "
    "catch_up apply only to CRON driven processors: "
    "remove them",
    "{type: Put, yield_duration: '#{secret}'}": "f.yaml:6:36: processors.Put.yield_duration: "
    "parameter 'secret' is sensitive, but this "
    "value is shown: use another parameter",
    "{type: Put, penalty_duration: '#{folder}'}": None,
    "{type: Put, run_duration: 5}": None,
}


@pytest.mark.parametrize("fields", PROCESSORS)
def test_processors(fields: str) -> None:
    found = with_processor(fields)
    expected = PROCESSORS[fields]
    assert found, "it passed"
    assert expected is None or found == [expected]


def test_what_is_required_is_asked_for() -> None:
    assert with_processor("{type: GetFile}", "Read") == [
        "f.yaml:4:9: processors.Read.properties.directory: property 'directory' is required: give "
        "a text"
    ]


def test_values_are_judged_with_their_parameters() -> None:
    good = "{type: GetFile, properties: {directory: '#{folder}/in', Batch Size: '#{size}'}}"
    assert with_processor(good, "Read") == []
    bad = good.replace("#{size}", "#{folder}")
    assert with_processor(bad, "Read") == [
        "f.yaml:4:77: processors.Read.properties.Batch Size: '/data' is not an integer of 64 bits: write one such as 100"
    ]


def test_a_cron_expression_is_wrong_at_a_place() -> None:
    (problem,) = with_processor("{type: Put, schedule: 'cron 0 0 13 * * *'}")
    first, expression, mark = problem.splitlines()
    assert first.startswith("f.yaml:6:30: processors.Put.schedule.period: day of month and day of")
    assert expression.strip() == "0 0 13 * * *"
    assert mark.strip() == "^"


def test_a_zone_that_is_none() -> None:
    (problem,) = with_processor(
        "{type: Put, schedule: {strategy: cron, period: 0 0 13 * * ?, zone: Mars/Olympus}}"
    )
    assert problem.startswith("f.yaml:6:75: processors.Put.schedule.zone: ")


def test_one_thread_only() -> None:
    assert problems("name: x\nprocessors: {S: {type: Single, concurrent_tasks: 2}}") == [
        "f.yaml:2:50: processors.S.concurrent_tasks: Single runs on one thread at a time: leave "
        "it at 1"
    ]


CONNECTIONS = {
    "{from: Check.valid, to: Putt}": "f.yaml:10:27: connections[2].to: unknown component "
    "'Putt'; did you mean 'Put'?",
    "{from: Chek.valid, to: Put}": "f.yaml:10:10: connections[2].from: unknown component "
    "'Chek'; did you mean 'Check'?",
    "{from: Check.vald, to: Put, name: two}": "f.yaml:10:10: connections[2].from: Check has no "
    "relationship 'vald'; did you mean 'valid'?",
    "{from: Check, relationships: [vald], to: Put, name: two}": "f.yaml:10:32: "
    "connections[2].relationships: Check has no relationship 'vald'; did you mean 'valid'?",
    "{from: Check, to: Put, name: two}": "f.yaml:10:10: connections[2].from: specify a "
    "relationship of 'Check', such as Check.invalid",
    "{from: Check.valid, to: Read}": "f.yaml:10:27: connections[2].to: 'Read' is a source and "
    "takes no input: connect another destination",
    "{from: Check.valid, to: Put}": "f.yaml:10:3: connections[2]: connections[1] connects the "
    "same two components: join them by relationships: [...], or "
    "give each a name",
    "{from: Check.invalid, to: Put, name: two}": "f.yaml:5:41: "
    "processors.Check.auto_terminated: "
    "relationship 'invalid' is connected, so its "
    "FlowFiles do not end here: remove the "
    "connection or this entry",
    "{from: Check.valid, to: Put, name: two, prioritizers: Oldest}": None,
    "{from: Check.valid, to: Put, name: two, back_pressure_size: 1 XB}": "f.yaml:10:63: "
    "connections[2].back_pressure_size: '1 XB' is not a size: write one such as 512, 64 KB, 10 MB or "
    "2 GB",
    "{from: Check.valid, to: Put, name: two, expiration: never}": "f.yaml:10:55: "
    "connections[2].expiration: 'never' is not a period: write a number and a unit, such as 10 sec, "
    "1.5 hours or 100 ms",
}


@pytest.mark.parametrize("fields", CONNECTIONS)
def test_connections(fields: str) -> None:
    found = with_connection(fields)
    expected = CONNECTIONS[fields]
    assert found, "it passed"
    assert expected is None or found == [expected]


def test_relationships_that_lead_nowhere_and_inputs_that_are_missing() -> None:
    assert problems("name: x\nprocessors: {C: {type: Check}}") == [
        "f.yaml:2:14: processors.C: it has no incoming connection, but it works on incoming "
        "FlowFiles: connect it",
        "f.yaml:2:14: processors.C: relationship 'invalid' is not connected: connect it, or "
        "list it in auto_terminated",
        "f.yaml:2:14: processors.C: relationship 'valid' is not connected: connect it, or list "
        "it in auto_terminated",
    ]
    only_loop = (
        "name: x\nprocessors: {C: {type: Check, auto_terminated: valid}}\n"
        "connections: [{from: C.invalid, to: C}]"
    )
    assert problems(only_loop) == [
        "f.yaml:2:14: processors.C: its only incoming connection is a loop, but it works on "
        "incoming FlowFiles: connect it"
    ]


def test_dynamic_properties_make_relationships() -> None:
    text = (
        "name: x\nprocessors:\n  A: {type: Pass}\n"
        "  R: {type: Route, properties: {big: a, small: b}, auto_terminated: [unmatched, big]}\n"
        "connections:\n- {from: A.success, to: R}\n"
    )
    assert problems(text) == [
        "f.yaml:4:3: processors.R: relationship 'small' is not connected: connect it, or list "
        "it in auto_terminated"
    ]


def test_a_cycle_that_nothing_feeds() -> None:
    cycle = (
        "name: x\nprocessors:\n  A: {type: Pass}\n  B: {type: Pass}\n  C: {type: Pass}\n"
        "connections:\n- {from: A.success, to: B}\n- {from: B.success, to: C}\n"
        "- {from: C.success, to: A}\n"
    )
    assert problems(cycle) == [
        "f.yaml:3:3: processors.A: no component feeds this cycle, A → B → C → A: connect a "
        "source to it"
    ]
    fed = cycle.replace(
        "connections:", "  S: {type: Pass}\nconnections:\n- {from: S.success, to: B}"
    )
    assert problems(fed) == []


def test_groups_and_their_ports() -> None:
    text = """name: x
processors:
  A: {type: Pass}
  B: {type: Put}
connections:
- {from: A.success, to: G/in}
- {from: G/out, to: B}
groups:
  G:
    input_ports: [in]
    output_ports: [out]
    processors: {P: {type: Pass}}
    connections:
    - {from: in, to: P}
    - {from: P.success, to: out}
"""
    assert problems(text) == []
    wrong = text.replace("to: G/in", "to: G").replace("from: G/out", "from: G/in")
    assert problems(wrong) == [
        "f.yaml:6:25: connections[0].to: 'G' is a process group: specify one of its ports (G/in)",
        "f.yaml:7:10: connections[1].from: input port 'in' leads into its group: seen from outside "
        "it cannot be 'from'",
        "f.yaml:11:20: groups.G.output_ports.out: FlowFiles would stay in this output port "
        "forever: connect it",
    ]
    root = "name: x\ninput_ports: [in]\noutput_ports: [out]\n"
    assert [line.split(": ", 2)[2] for line in problems(root)] == [
        "the root group has no parent group, so nothing arrives at its input port: use a source "
        "processor",
        "the root group has no parent group, so its output port leads nowhere: remove the port",
    ]


def test_names_and_ids_that_two_have() -> None:
    id_ = "0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10"
    text = (
        f"name: x\nfunnels: {{A: {{id: {id_}}}, B: {{id: {id_.upper()}}}}}\n"
        "processors: {A: {type: Put}}\ngroups: {B: {}}\n"
    )
    assert [line for line in problems(text) if "connection" not in line] == [
        "f.yaml:2:11: funnels.A: processor 'A' has the same name: names in a group must be unique",
        "f.yaml:2:66: funnels.B.id: funnels.A has the same id: ids must be unique",
        "f.yaml:4:10: groups.B: funnel 'B' has the same name: names in a group must be unique",
    ]


def test_contexts() -> None:
    text = (
        "name: x\nparameter_context: prodd\nparameter_contexts:\n"
        "  prod: {inherits: [base, bas]}\n  base: {inherits: prod}\n"
    )
    assert problems(text) == [
        "f.yaml:2:20: parameter_context: unknown parameter context 'prodd'; did you mean 'prod'?",
        "f.yaml:4:27: parameter_contexts.prod.inherits[1]: unknown parameter context 'bas'; did "
        "you mean 'base'?",
        "f.yaml:5:20: parameter_contexts.base.inherits: contexts inherit in a cycle, prod → "
        "base → prod: remove one",
    ]


def test_a_flow_made_in_python_has_problems_at_paths() -> None:
    flow = FlowBuilder("x")
    flow.processor("A", "Putt")
    assert [str(problem) for problem in validate(flow.build(), TYPES)] == [
        "processors.A.type: unknown processor type 'Putt'; did you mean 'Put'?"
    ]


def test_a_chain_of_thousands_is_no_matter_of_depth() -> None:
    lines = [f"  P{number}: {{type: Pass}}" for number in range(2000)]
    ways = [f"- {{from: P{number}.success, to: P{(number + 1) % 2000}}}" for number in range(2000)]
    (problem,) = problems("\n".join(["name: x", "processors:", *lines, "connections:", *ways]))
    assert problem == (
        "f.yaml:3:3: processors.P0: no component feeds this cycle, P0 → P1 → P2 → P3 → P4 → P5 "
        "→ …: connect a source to it"
    )


def test_thousands_of_mistakes_cost_no_more_than_as_many_lines() -> None:
    lines = [f"  Processor {number}: {{type: Pass}}" for number in range(2000)]
    ways = [
        f"- {{from: Processor {number}.sucess, to: Procesor {number}}}" for number in range(2000)
    ]
    found = problems("\n".join(["name: x", "processors:", *lines, "connections:", *ways]))
    assert len(found) == 6000
    assert found[2000].endswith("Pass has no relationship 'sucess'; did you mean 'success'?")
    assert found[-1].endswith("use a processor, a funnel, a port or GROUP/PORT")


def test_dots_in_names_and_relationships_part_where_a_component_is_named() -> None:
    text = (
        "name: x\nprocessors:\n  A: {type: Pass}\n"
        "  R: {type: Route, properties: {not.found: a}}\nfunnels: [f.g]\nconnections:\n"
        "- {from: A.success, to: R}\n- {from: [R.not.found, R.unmatched], to: f.g}\n"
        "- {from: f.g, to: R}\n"
    )
    assert problems(text) == []
    written_out = "from: R, relationships: [not.found, unmatched]"
    assert problems(text.replace("from: [R.not.found, R.unmatched]", written_out)) == []
    apart = "from: R.not.found, to: f.g}\n- {from: R.unmatched"
    (problem,) = problems(text.replace("from: [R.not.found, R.unmatched]", apart))
    assert "connects the same two" in problem
    assert problems(text.replace("R.unmatched]", "R.un.matched]"))[-1].endswith(
        "Route has no relationship 'un.matched'; did you mean 'unmatched'?"
    )


def test_names_are_compared_in_normal_form() -> None:
    nfc, nfd = "Caf\u00e9", "Cafe\u0301"
    # What looks the same is the same, however it is spelt where it is named.
    renamed = HEAD.replace("Put: {", f"{nfc}: {{").replace("to: Put", f"to: {nfd}")
    assert problems(renamed) == []
    assert problems(HEAD.replace("  Put: {", f"  {nfd}: {{").replace("to: Put", f"to: {nfc}")) == []
    double = HEAD.replace(
        "connections:", f"  {nfc}: {{type: Put}}\n  {nfd}: {{type: Put}}\nconnections:"
    )
    assert any("has the same name" in one for one in problems(double))
    groups = f"{HEAD}groups:\n  {nfc}: {{}}\n  {nfd}: {{}}\n"
    (problem,) = problems(groups)
    assert problem.endswith(f"another group is also named {nfd!r}: names in a group must be unique")


@pytest.mark.parametrize("number", [1 << 63, 10**30])
@pytest.mark.parametrize(
    "fields",
    [
        "connections: [{{from: A, to: B, back_pressure_count: {}}}]",
        "connections: [{{from: A, to: B, swap_threshold: {}}}]",
        "labels: [{{text: a, position: [{}, 1]}}]",
        "labels: [{{text: a, position: [1, -{}1]}}]",
    ],
)
def test_numbers_of_more_than_64_bits_are_refused(fields: str, number: int) -> None:
    with pytest.raises(InvalidFlow, match="must be at"):
        read_flow(f"name: x\n{fields.format(number)}")

"""Flow files: what is read, and what is refused at which place with which words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.graph import yaml_reader
from penstock.flow.graph.flow_model import Retry, Schedule, Strategy
from penstock.flow.graph.source_locations import FlowProblem, InvalidFlow
from penstock.flow.graph.yaml_reader import LIMITS, read_flow
from tests.flow.graph_kit import TYPES, problems

GOOD = """
name: flights
parameters:
  folder: /data
  password: {env: PASSWORD}
processors:
  Read:
    type: GetFile
    properties: {directory: '#{folder}', Batch Size: 20}
    schedule: every 10 sec
  Check:
    type: Check
    properties:
      strict: yes
      columns: [a, b]
    retry: {invalid: 3}
  Put:
    type: Put
    properties: {user: me, password: '#{password}'}
funnels: [Bad]
connections:
  - {from: Read.success, to: Check, prioritizers: FirstInFirstOutPrioritizer}
  - {from: Check.valid, to: Put, back_pressure_size: 2 GB, expiration: 1 h}
  - {from: [Check.invalid], to: Bad}
  - {from: Bad, to: Put}
"""


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(InvalidFlow) as error:
        read_flow(text, "f.yaml")
    return [str(problem) for problem in error.value.problems]


def test_a_good_flow_has_no_problems() -> None:
    assert problems(GOOD) == []


def test_scalars_stay_as_they_are_written() -> None:
    flow = read_flow(
        "name: x\nprocessors:\n  A: {type: T, properties: {a: 0755, b: no, c: 1.10, d: null, "
        "e: 'null', f: 2026-01-01, g: , h: '', i: [1, no]}}"
    ).flow
    assert flow.processors["A"].properties == {
        "a": "0755", "b": "no", "c": "1.10", "e": "null", "f": "2026-01-01", "h": "",
        "i": ("1", "no"),
    }  # fmt: skip


def test_short_forms_say_what_long_forms_say() -> None:
    text = "name: x\nprocessors:\n  A: {{type: T, schedule: {0}, retry: {{f: {1}}}}}"
    short = read_flow(text.format("cron 0 0 13 * * ?", "3")).flow
    long = read_flow(
        text.format("{strategy: cron, period: '0 0 13 * * ?'}", "{count: 3, backoff: penalize}")
    ).flow
    assert short == long
    assert short.processors["A"].schedule == Schedule(strategy=Strategy.CRON, period="0 0 13 * * ?")
    assert short.processors["A"].retry == {"f": Retry(count=3)}


def test_many_sources_of_one_destination() -> None:
    text = "name: x\nconnections:\n- from: [A.a, B.b]\n  to: C\n- {from: D.d, to: E, odd: 1}\n"
    assert refused(text) == [
        (
            "f.yaml:5:22: connections[1].odd: unknown field 'odd'; use one of from, "
            "relationships, to, name, id, prioritizers, expiration, back_pressure_count, "
            "back_pressure_size, swap_threshold"
        )
    ]
    flow = read_flow(text.replace(", odd: 1", "")).flow
    assert [(one.source, one.relationships, one.destination) for one in flow.connections] == [
        ("A", ("a",), "C"),
        ("B", ("b",), "C"),
        ("D", ("d",), "E"),
    ]


def test_several_relationships_of_one_component_in_a_list_are_one_connection() -> None:
    text = (
        "name: x\nprocessors: {A: {type: a}, B: {type: b}}\nfunnels: [F.x]\nconnections:\n"
        "- {from: [A.not.found, B.b, F.x, A.c], to: C}\n- {from: A.d, to: E}\n"
    )
    read = read_flow(text, "f.yaml")
    assert [(one.source, one.relationships) for one in read.flow.connections] == [
        ("A", ("c", "not.found")),  # names are in their order
        ("B", ("b",)),
        ("F", ("x",)),  # parted where the graph will not: it knows the funnel
        ("A", ("d",)),
    ]
    assert str(read.places.at(("connections", 0, "relationships"))).startswith("f.yaml:5:11:")
    assert str(read.places.at(("connections", 3, "to"))) == "f.yaml:6:19: connections[1].to"


def test_the_last_dot_parts_the_relationship_and_relationships_say_it_otherwise() -> None:
    flow = read_flow(
        "name: x\nconnections:\n- {from: A.b.c, to: D}\n"
        "- {from: A.b.c, relationships: [r.s], to: D}\n- {from: A.b, relationships: [], to: D}\n"
    ).flow
    assert [(one.source, one.relationships) for one in flow.connections] == [
        ("A.b", ("c",)),
        ("A.b.c", ("r.s",)),
        ("A.b", ()),
    ]


NAMES = "use up to 200 characters of letters, digits, spaces inside and signs such as . _ -"
BAD = {
    "": "f.yaml:1:1: the file is empty: write a flow that begins with name:",
    "- a": "f.yaml:1:1: must be a mapping",
    "version: 1": "f.yaml:1:1: 'name' is missing: add it",
    "name: [x]": "f.yaml:1:7: name: must be a text",
    "name: a/b": "f.yaml:1:7: name: 'a/b' is not a valid name: it has '/', and a slash separates a "
    f"group from its components; {NAMES}",
    "name: ' a'": "f.yaml:1:7: name: ' a' is not a valid name: it starts or ends with a space; "
    f"{NAMES}",
    "name: x\nnaem: y": "f.yaml:2:1: naem: unknown field 'naem'; did you mean 'name'?",
    "name: x\nformat: 2": ("f.yaml:1:1: unknown format 2: this version of Penstock reads format 1"),
    "name: x\nid: 12": (
        "f.yaml:2:5: id: an id must be a UUID, such as 0b1e5c9e-8d3f-5a51-9a55-2f1f0c7d8a10"
    ),
    "name: x\nprocessors: [a]": "f.yaml:2:13: processors: must be a mapping",
    "name: x\nprocessors: {a: GetFile}": "f.yaml:2:17: processors.a: must be a mapping",
    "name: x\nprocessors: {a: {}}": "f.yaml:2:14: processors.a: 'type' is missing: add it",
    "name: x\nprocessors: {a: {type: T, concurrent_tasks: 0}}": (
        "f.yaml:2:45: processors.a.concurrent_tasks: must be at least 1"
    ),
    "name: x\nprocessors: {a: {type: T, concurrent_tasks: many}}": (
        "f.yaml:2:45: processors.a.concurrent_tasks: must be an integer"
    ),
    "name: x\nprocessors: {a: {type: T, enabled: maybe}}": (
        "f.yaml:2:36: processors.a.enabled: must be true or false"
    ),
    "name: x\nprocessors: {a: {type: T, properties: {b: {c: d}}}}": (
        "f.yaml:2:43: processors.a.properties.b: must be a text, a number, true, false or a list "
        "of texts"
    ),
    "name: x\nprocessors: {a: {type: T, schedule: hourly}}": (
        "f.yaml:2:37: processors.a.schedule: 'hourly' is not a schedule: write event, every "
        "PERIOD (every 10 sec) or cron EXPRESSION (cron 0 0 13 * * ?)"
    ),
    "name: x\nprocessors: {a: {type: T, schedule: {strategy: often}}}": (
        "f.yaml:2:48: processors.a.schedule.strategy: must be 'event', 'timer' or 'cron'"
    ),
    "name: x\nprocessors: {a: {type: T, schedule: {perod: 1 s}}}": (
        "f.yaml:2:38: processors.a.schedule.perod: unknown field 'perod'; did you mean 'period'?"
    ),
    "name: x\nparameters: {p: {value: a, env: B}}": (
        "f.yaml:2:17: parameters.p: a parameter needs exactly one of value, env, file and secret"
    ),
    "name: x\nparameters: {p: {value: a, sensitive: true}}": (
        "f.yaml:2:17: parameters.p: a sensitive value must not be written in the flow: use "
        "secret, env or file"
    ),
    "name: x\nparameters: {p: {secret: a, sensitive: false}}": (
        "f.yaml:2:17: parameters.p: a secret is always sensitive: leave out sensitive"
    ),
    "name: x\nparameters: {p: 'secret://a/b'}": (
        "f.yaml:2:17: parameters.p: invalid name of a secret: use 1 to 128 of the characters a-z,"
        " A-Z, 0-9, . _ - and begin with a letter or a digit"
    ),
    "name: x\nparameters: {p?: 1}": (
        "f.yaml:2:14: parameters.p?: 'p?' is not a valid parameter name: use only letters, "
        "digits, spaces and . _ -"
    ),
    "name: x\nfunnels: [a, a]": "f.yaml:2:10: funnels: 'a' is listed more than once: remove one",
    "name: x\nlabels: [{position: [1, 2]}]": "f.yaml:2:10: labels[0]: 'text' is missing: add it",
    "name: x\ngroups:\n  g.h:\n    processors:\n      p: {type: T, position: [1]}": (
        "f.yaml:5:30: groups['g.h'].processors.p.position: a position is two integers, [x, y]"
    ),
    "name: x\nname: y": (
        "f.yaml:2:1: duplicate key 'name', first in line 1: give each key its own name"
    ),
    "name: x\n---\nname: y": "f.yaml:2:1: a second document: write one document per file",
    "name: &a x": "f.yaml:1:7: an anchor, &a: leave it out",
    "name: *a": "f.yaml:1:7: an alias, *a: write the value out",
    "name: !!python/object:os.system x": (
        "f.yaml:1:7: a tag, tag:yaml.org,2002:python/object:os.system: leave it out"
    ),
    "name: !x y": "f.yaml:1:7: a tag, !x: leave it out",
    "? [a]\n: b": "f.yaml:1:3: a key that is a list or a mapping: write a text",
    "name: 'x": (
        "f.yaml:1:9: invalid YAML: found unexpected end of stream while scanning a quoted scalar"
    ),
    "name: x\n\ty: z": (
        "f.yaml:2:1: invalid YAML: found a tab character that violates indentation while "
        "scanning a plain scalar; indent with spaces, not with a tab"
    ),
    "name: x\0": "f.yaml:1:8: invalid YAML: control characters are not allowed",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[-40:])
def test_bad_files(text: str) -> None:
    assert refused(text) == [BAD[text]]


def test_all_that_does_not_fit_is_told_at_once_in_order() -> None:
    lines = refused(
        "name: x\nprocessors:\n  A: {typ: T}\n  B: {type: T, enabled: 3}\n"
        "connections:\n- {to: [A]}\n"
    )
    assert [line.split(": ")[0] for line in lines] == [
        "f.yaml:3:3", "f.yaml:3:7", "f.yaml:4:25", "f.yaml:6:3", "f.yaml:6:8",
    ]  # fmt: skip


def test_bytes_that_are_no_text() -> None:
    assert refused(b"name: x\nb: \xff") == [
        "f.yaml:2:4: this byte is not UTF-8: write the file in UTF-8"
    ]
    assert read_flow("﻿name: x".encode()).flow.name == "x"


def test_bombs_are_refused_early() -> None:
    laughs = "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n"
    assert refused(laughs) == ["f.yaml:1:4: an anchor, &a: leave it out"]
    for deep in ("[" * 100_000, "{a: " * 100_000, "- " * 100_000):
        (problem,) = refused(deep)
        assert problem.endswith("nested deeper than 64: make it flatter")
    (problem,) = refused("[" + "," * 2_000_000)
    assert "invalid YAML" in problem
    (problem,) = refused(b" " * (LIMITS.size_bytes + 1))
    assert problem == "f.yaml:1:1: the file is larger than 16 MiB: split the flow"
    (problem,) = refused("é" * (LIMITS.size_bytes // 2 + 1))
    assert problem == "f.yaml:1:1: the file is larger than 16 MiB: split the flow"


def test_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "LIMITS", replace(LIMITS, values=100))
    (problem,) = refused("a: [" + "x, " * 200 + "]")
    assert problem == "f.yaml:1:296: more than 100 values: split the flow"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    for prefix in ("", "name: ", "name: x\nprocessors: ", "name: x\nconnections:\n- from: "):
        with suppress(InvalidFlow):
            read_flow(prefix + text)


@given(st.data())
def test_a_broken_flow_is_refused_at_a_place_in_the_file(data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(GOOD)))
    broken = GOOD[:cut] + data.draw(st.sampled_from(["", "{", "'", ":", "\t", "-", "&", "#{"]))
    lines = GOOD.count("\n") + 2
    found: Sequence[FlowProblem] = ()
    try:
        problems(broken)
    except InvalidFlow as error:
        found = error.problems
    assert all(1 <= problem.place.line <= lines for problem in found)


def test_no_secret_is_repeated() -> None:
    text = (
        "name: x\nparameters: {p: {value: hunter2, sensitive: true}}\n"
        "processors: {A: {type: Put, properties: {password: {v: hunter2}, user: [hunter2, {}]}}}"
    )
    assert "hunter2" not in "".join(refused(text))
    text = (
        "name: x\nprocessors: {A: {type: Put, properties: {password: hunter2, pasword: hunter2}}}"
    )
    assert "hunter2" not in "".join(problems(text))
    assert TYPES.find("Put") is not None

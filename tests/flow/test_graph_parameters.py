"""Parameters: which one a name means where, their values, and that secrets stay secret."""

# Expected messages stand here as they are printed.
# ruff: noqa: ISC004

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.graph.builder import FlowBuilder
from penstock.flow.graph.export import to_yaml
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.parameters import (
    ParameterValues,
    is_unclosed,
    named_secrets,
    put_in,
    references,
    sole_reference,
)
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.yaml_reader import read_flow
from penstock.storage.secrets.secret_sources import Secrets

FLOW = """name: x
parameters: {a: root a, b: root b}
parameter_context: prod
parameter_contexts:
  base: {parameters: {b: base b, c: base c, d: base d}}
  more: {parameters: {c: more c, d: more d}, inherits: base}
  prod: {parameters: {a: prod a}, inherits: [more, base]}
  other: {parameters: {a: other a}}
processors:
  P: {type: T, properties: {v: '#{a}|#{b}|#{c}|#{d}|##{a}'}}
groups:
  Inner:
    parameter_context: other
    parameters: {c: inner c}
    processors: {P: {type: T, properties: {v: ['#{a}', '#{b}', '#{c}']}}}
    groups:
      Deep: {processors: {P: {type: T, properties: {v: '#{a}|#{d}'}}}}
"""


def no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", path)


def test_the_nearest_meaning_counts() -> None:
    index = FlowIndex.of(read_flow(FLOW).flow)
    values = ParameterValues.load(index, {}, no_file)
    seen = {str(placed): values.properties(placed)["v"] for placed in index.components}
    assert seen == {
        "P": "root a|root b|more c|more d|#{a}",
        "Inner/P": ("other a", "root b", "inner c"),
        "Inner/Deep/P": "other a|more d",
    }


def test_secrets_come_from_outside_and_are_not_shown() -> None:
    builder = FlowBuilder("x")
    builder.secret("word", env="WORD")
    builder.secret("key", file="/run/key")
    builder.processor("P", "T", {"word": "#{word}", "key": "#{key}"})
    flow = builder.build()
    index = FlowIndex.of(flow)
    values = ParameterValues.load(index, {"WORD": "hunter2"}, lambda _: b"open sesame\r\n")
    properties = values.properties(index.components[0])
    assert dict(properties) == {"word": "hunter2", "key": "open sesame"}
    shown = repr(flow) + to_yaml(flow) + repr(values) + repr(properties) + f"{properties}"
    assert "hunter2" not in shown
    assert "sesame" not in shown


def test_secrets_of_penstock_are_named_and_looked_up_at_each_start(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path / "secrets")
    secrets.store().set("word", "hunter2")
    text = (
        "name: x\nparameters: {short: 'secret://word', long: {secret: word, description: d}}\n"
        "processors: {P: {type: T, properties: {a: '#{short}', b: '#{long}', c: 'secret://word',"
        " d: 'secret://word'}}}\n"
    )
    flow = read_flow(text, "f.yaml").flow
    assert "short: secret://word\n" in to_yaml(flow)
    assert read_flow(to_yaml(flow), "g.yaml").flow == flow
    index = FlowIndex.of(flow)
    assert named_secrets(index) == {"word"}
    values = ParameterValues.load(index, {}, no_file, secrets=secrets)
    properties = values.properties(index.components[0], sensitive={"a", "b", "c"})
    named = {"a": "hunter2", "b": "hunter2", "c": "hunter2", "d": "secret://word"}
    assert dict(properties) == named, "d is shown, so it names no secret"
    assert "hunter2" not in repr(flow) + to_yaml(flow) + repr(values) + repr(properties)
    secrets.store().set("word", "hunter3")
    again = ParameterValues.load_known(index, {}, no_file, secrets)
    assert again.properties(index.components[0], {"a"})["a"] == "hunter3"


def test_a_secret_without_a_value_is_told_at_its_place(tmp_path: Path) -> None:
    text = (
        "name: x\nparameters: {p: 'secret://absent'}\n"
        "processors: {P: {type: T, properties: {a: 'secret://missing'}}}\n"
    )
    read = read_flow(text, "f.yaml")
    index, secrets = FlowIndex.of(read.flow), Secrets(tmp_path)
    with pytest.raises(InvalidFlow, match=r"f.yaml:2:\d+: .*unknown secret 'absent'"):
        ParameterValues.load(index, {}, no_file, read.places, secrets)
    values = ParameterValues.load_known(index, {}, no_file, secrets)
    with pytest.raises(InvalidFlow, match="unknown secret 'missing'"):
        values.properties(index.components[0], {"a"})


@pytest.mark.parametrize(
    "name",
    [
        *("PENSTOCK_TOKEN", "PENSTOCK_METADATA_URL", "PENSTOCK_SPARK_CONNECT"),
        *("PENSTOCK_INPUT_SHOP", "SPARK_CONNECT_AUTHENTICATE_TOKEN"),
    ],
)
def test_variables_with_secrets_of_penstock_are_not_read(name: str) -> None:
    builder = FlowBuilder("x")
    builder.secret("p", env=name)
    builder.processor("P", "T", {"word": "#{p}"})
    index = FlowIndex.of(builder.build())
    with pytest.raises(InvalidFlow, match="flows must not read environment variable") as refused:
        ParameterValues.load(index, {name: "hunter2"}, lambda _: b"")
    assert "hunter2" not in str(refused.value)
    values = ParameterValues.load_known(index, {name: "hunter2"}, lambda _: b"")
    with pytest.raises(InvalidFlow, match="flows must not read environment variable"):
        values.properties(index.components[0])


def test_everything_that_is_missing_is_told_with_its_place() -> None:
    read = read_flow(
        "name: x\nparameters:\n  a: {env: A}\n  b: {file: /no/b}\n  c: {file: big}\n"
        "  d: {file: binary}\n  e: {env: E}\n",
        "f.yaml",
    )

    def read_file(path: str) -> bytes:
        found = {"big": b"x" * (1 << 20) + b"x", "binary": b"\xff"}
        return found[path] if path in found else no_file(path)

    with pytest.raises(InvalidFlow) as error:
        ParameterValues.load(FlowIndex.of(read.flow), {"E": "e"}, read_file, read.places)
    assert [str(problem) for problem in error.value.problems] == [
        "f.yaml:3:6: parameters.a: environment variable 'A' is not set: set it for the service",
        "f.yaml:4:6: parameters.b: file '/no/b' cannot be read: No such file or directory; make it "
        "readable",
        "f.yaml:5:6: parameters.c: file 'big' has more than 1048576 bytes: shorten it",
        "f.yaml:6:6: parameters.d: file 'binary' is not valid UTF-8: encode it in UTF-8",
    ]


def test_notation() -> None:
    assert references("#{a} ##{b} #{ c d }#{a}") == ("a", "c d", "a")
    assert sole_reference(" #{a} ") == "a"
    assert sole_reference("#{a}b") is None
    assert sole_reference("##{a}") is None
    assert is_unclosed("#{a")
    assert is_unclosed("#{a} #{b{c}}")
    assert not is_unclosed("##{a and #{b}")
    assert put_in("##{a} #{a} #a {a}", {"a": "#{b}"}.__getitem__) == "#{a} #{b} #a {a}"


@given(st.text(alphabet="#{}a ", max_size=20))
def test_what_holds_no_reference_stays(text: str) -> None:
    names = references(text)
    assert put_in(text, lambda name: f"<{name}>").count("<") == len(names)
    if not names and "##{" not in text:
        assert put_in(text, str) == text


def test_values_are_not_searched_for_parameters() -> None:
    index = FlowIndex.of(read_flow("name: x\nparameters: {a: '#{b}', b: c}").flow)
    values = ParameterValues.load(index, {}, no_file)
    assert values.text(index.groups[0], "#{a}") == "#{b}"
    with pytest.raises(InvalidFlow, match="unknown parameter 'bb'; did you mean 'b'"):
        values.text(index.groups[0], "#{bb}")

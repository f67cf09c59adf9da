"""Parameters: which one a name means where, their values, and that secrets stay secret."""

# Expected messages stand here as they are printed.
# ruff: noqa: ISC004

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.graph.builder import FlowBuilder
from penstock.flow.graph.export import to_yaml
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.parameters import (
    ParameterValues,
    is_unclosed,
    put_in,
    references,
    sole_reference,
)
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.graph.yaml_reader import read_flow

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

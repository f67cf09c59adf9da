"""Where the router finds expressions in a spec, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineUnavailable
from penstock.services.api.spec_check import check_expressions, is_checked

PATH = "/nobody/reads/the/rest"


def spec(*expressions: object) -> bytes:
    transforms = [{"type": "expression", "name": "x", "expression": one} for one in expressions]
    return json.dumps(
        {"spec": {"dataSchema": {"transformSpec": {"transforms": transforms}}}}
    ).encode()


def odd(expressions: Sequence[str]) -> list[str]:
    return [f"{one!r} is odd" if one.startswith("!") else "" for one in expressions]


def test_the_mistake_has_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_expressions(PATH, spec("a", "!b"), odd)
    place = "spec.dataSchema.transformSpec.transforms[1].expression"
    assert str(caught.value) == f"{place}: '!b' is odd"


def test_a_spec_in_yaml_is_looked_into_too() -> None:
    text = """
type: index_parallel
spec:
  dataSchema:
    transformSpec:
      transforms:
        - {type: expression, name: x, expression: a}
        - type: expression
          name: y
          expression: "!b"
"""
    with pytest.raises(InvalidRequest, match=r"^spec.*transforms\[1\].expression: '!b' is odd$"):
        check_expressions(PATH, text.encode(), odd)


def test_projections_are_looked_into_too() -> None:
    column = {"type": "expression", "name": "x", "expression": "!a"}
    given = {"virtualColumns": [column], "filter": {"type": "expression", "expression": "!b"}}
    for body, place in (
        ({"spec": {"dataSchema": {"projections": [given]}}}, "spec.dataSchema."),
        ({"type": "compact", "projections": [given]}, ""),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_expressions(PATH, json.dumps(body).encode(), odd)
        at = f"{place}projections[0]"
        assert f"{at}.virtualColumns[0].expression: '!a' is odd" in str(caught.value)
        assert f"{at}.filter.expression: '!b' is odd" in str(caught.value)


def test_every_mistake_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"^2 mistakes in the spec:\n  .*\[0\].*\n  .*\[2\]"):
        check_expressions(PATH, spec("!a", "b", "!c"), odd)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"neither: [this, nor",
        b"twice: 1\ntwice: 2",
        b"[]",
        b'{"spec": []}',
        b'{"spec": {"dataSchema": {"transformSpec": {"transforms": {}}}}}',
        spec(1, None, "", []),
    ],
)
def test_what_is_no_expression_is_left_to_the_overlord(body: bytes) -> None:
    def asked(expressions: Sequence[str]) -> list[str]:
        raise AssertionError(expressions)

    check_expressions(PATH, body, asked)


def test_without_spark_nothing_is_refused() -> None:
    def lost(expressions: Sequence[str]) -> list[str]:
        raise EngineUnavailable(f"Spark is gone: {expressions}")

    check_expressions(PATH, spec("!a"), lost)


def test_filters_are_looked_into_wherever_they_stand() -> None:
    def expression(text: str) -> dict[str, object]:
        return {"type": "expression", "expression": text}

    deep = {"type": "and", "fields": [{"type": "not", "field": expression("!a")}, expression("b")]}
    task = {
        "spec": {
            "dataSchema": {"transformSpec": {"filter": deep}},
            "ioConfig": {"inputSource": {"type": "druid", "filter": expression("!c")}},
        },
        "transformSpec": {"filter": expression("!d")},
    }
    with pytest.raises(InvalidRequest) as caught:
        check_expressions(PATH, json.dumps(task).encode(), odd)
    assert str(caught.value).splitlines() == [
        "3 mistakes in the spec:",
        "  spec.dataSchema.transformSpec.filter.fields[0].field.expression: '!a' is odd",
        "  transformSpec.filter.expression: '!d' is odd",
        "  spec.ioConfig.inputSource.filter.expression: '!c' is odd",
    ]


def test_specs_of_supervisors_tasks_and_compaction_are_checked() -> None:
    base = "/druid/indexer/v1"
    for path in ("supervisor", "task", "compaction/config/datasources/d"):
        assert is_checked(f"{base}/{path}")
    for path in ("supervisor/s/suspend", "task/t/shutdown", "compaction/simulate", "action"):
        assert not is_checked(f"{base}/{path}")


def test_what_is_wrong_with_an_expression_is_told_with_all_other_mistakes() -> None:
    schema = {
        "dataSource": "d",
        "timestampSpec": {"column": "t", "format": "yyyy-QQQ"},
        "dimensionsSpec": {"dimensions": ["a"]},
        "transformSpec": {"transforms": [{"type": "expression", "name": "x", "expression": "!b"}]},
    }
    whole = {"dataSchema": schema, "ioConfig": {"topic": "t", "inputFormat": {"type": "json"}}}
    paths = {
        "/druid/indexer/v1/supervisor": {"type": "penstock", "spec": whole},
        "/druid/indexer/v1/task": {"type": "index_parallel", "spec": {**whole, "ioConfig": {}}},
    }
    for path, body in paths.items():
        with pytest.raises(InvalidRequest, match="mistakes in the spec") as caught:
            check_expressions(path, json.dumps(body).encode(), odd)
        assert "timestampSpec.format: the date pattern 'yyyy-QQQ'" in str(caught.value)
        assert "transforms[0].expression: '!b' is odd" in str(caught.value)
    config = {**schema, "dataSource": "d", "tuningConfig": 3}
    with pytest.raises(InvalidRequest, match="tuningConfig") as caught:
        check_expressions(
            "/druid/indexer/v1/compaction/config/datasources/d", json.dumps(config).encode(), odd
        )
    assert "'!b' is odd" in str(caught.value)

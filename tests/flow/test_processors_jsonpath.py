"""EvaluateJsonPath."""

from __future__ import annotations

import pytest

from penstock.flow.processor import InvalidConfiguration, PropertyValue
from penstock.flow.processors.routing.evaluate_json_path import EvaluateJsonPath
from penstock.testing.flow import ProcessorRunner

BOOKS = b"""{"store": {"books": [{"title": "A \\"b\\"", "price": 9.5}, {"title": "C", "price": 20}],
            "open": true, "owner": null}}"""


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$.store.books[0].title", 'A "b"'),
        ("$.store.books[1].price", "20"),
        ("$.store.open", "true"),
        ("$.store.owner", ""),
        ("$.store.books[1]", '{"title":"C","price":20}'),
        ("$.store.books[*].title", '["A \\"b\\"","C"]'),
        ("$.store.books[?@.price > 10].title", '["C"]'),
        ("$..price", "[9.5,20]"),
    ],
)
def test_values_become_attributes(path: str, text: str) -> None:
    with ProcessorRunner(EvaluateJsonPath, {"value": path}) as runner:
        runner.enqueue(BOOKS)
        runner.run()
        [sent] = runner.sent("matched")
    assert sent.attributes["value"] == text
    assert sent.content == BOOKS


def test_a_path_that_leads_nowhere_sets_nothing_or_empty_text() -> None:
    paths = {"open": "$.store.open", "none": "$.store.none"}
    with ProcessorRunner(EvaluateJsonPath, paths) as runner:
        runner.enqueue(BOOKS)
        runner.enqueue(b"{}")
        runner.run()
        [sent], [other] = runner.sent("matched"), runner.sent("unmatched")
    assert "none" not in sent.attributes
    assert "open" not in other.attributes
    with ProcessorRunner(EvaluateJsonPath, {**paths, "missing": "empty"}) as runner:
        runner.enqueue(BOOKS)
        runner.run()
        [sent] = runner.sent("matched")
    assert sent.attributes["none"] == ""


def test_null_has_the_text_that_is_asked_for() -> None:
    with ProcessorRunner(
        EvaluateJsonPath, {"owner": "$.store.owner", "null_text": "none"}
    ) as runner:
        runner.enqueue(BOOKS)
        runner.run()
        assert runner.sent("matched")[0].attributes["owner"] == "none"


def test_a_value_becomes_the_content() -> None:
    properties = {"destination": "content", "books": "$.store.books[*].title"}
    with ProcessorRunner(EvaluateJsonPath, properties) as runner:
        runner.enqueue(BOOKS)
        runner.enqueue(b"[]")
        runner.run()
        [sent], [other] = runner.sent("matched"), runner.sent("unmatched")
    assert sent.content == b'["A \\"b\\"","C"]'
    assert sent.attributes["mime.type"] == "application/json"
    assert other.content == b"[]"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'"text"', "single JSON value"),
        (b"[" * 5_000 + b"]" * 5_000, "not valid JSON"),
        (b"[" * 1_000 + b"]" * 1_000, "path 'deep'"),
        (b'["' + b"x" * 3_000 + b'"]', "max_size"),
    ],
)
def test_bad_content_fails_with_the_reason(content: bytes, reason: str) -> None:
    with ProcessorRunner(EvaluateJsonPath, {"deep": "$..x", "max_size": "2 KB"}) as runner:
        runner.processor = EvaluateJsonPath.configured(
            {"deep": "$..x", "max_size": "2 KB" if b"x" in content else "1 MB"}
        )
        runner.enqueue(content)
        runner.run()
        [failed] = runner.sent("failure")
    assert reason in failed.attributes["error.reason"]
    assert failed.content == content


def test_a_value_too_long_for_an_attribute_fails() -> None:
    with ProcessorRunner(EvaluateJsonPath, {"a": "$.a"}) as runner:
        runner.enqueue(b'{"a": "' + b"x" * (1 << 20) + b'y"}')
        runner.run()
        [failed] = runner.sent("failure")
    assert "too many for an attribute" in failed.attributes["error.reason"]
    assert "a" not in failed.attributes


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({}, ""),
        ({"a": "$.["}, "a"),
        ({"a": ""}, "a"),
        ({"uuid": "$.a"}, "uuid"),
        ({"a": "$.a", "b": "$.b", "destination": "content"}, "destination"),
        ({"a": "$.a", "max_size": "1 GB"}, "max_size"),
    ],
)
def test_a_wrong_configuration_names_the_property(
    properties: dict[str, PropertyValue], place: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        EvaluateJsonPath.configured(properties)
    assert [problem.place for problem in refused.value.problems] == [place]


@pytest.mark.parametrize("destination", ["attributes", "content"])
def test_a_result_that_nests_too_deeply_to_be_written_fails_alone(destination: str) -> None:
    """orjson reads 1,024 levels and writes 254; the batch was rolled back without end."""
    deep = b'{"a":' + b'{"a":' * 300 + b"1" + b"}" * 301
    with ProcessorRunner(EvaluateJsonPath, {"p": "$.a", "destination": destination}) as runner:
        for content in (b'{"a":1}', deep, b'{"a":2}'):
            runner.enqueue(content)
        runner.run()
        [failed] = runner.sent("failure")
        assert len(runner.sent("matched")) == 2
    assert failed.content == deep
    assert "path 'p' cannot be written as JSON" in failed.attributes["error.reason"]

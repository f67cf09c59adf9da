"""Processors that work on attributes: UpdateAttribute, RouteOnAttribute, LogAttribute, retries."""

from __future__ import annotations

import logging

import pytest

from penstock.flow.processor import InvalidConfiguration, Processor, PropertyValue
from penstock.flow.processors.routing.attributes import (
    LogAttribute,
    RouteOnAttribute,
    UpdateAttribute,
)
from penstock.flow.processors.routing.retry_flowfile import RetryFlowFile
from penstock.testing.flow import PROCESSOR_ID, ProcessorRunner


def test_attributes_are_set_from_those_before_and_others_stay() -> None:
    properties = {"color": "${shade}-${color}", "shade": "new", "at": "${now()}"}
    with ProcessorRunner(UpdateAttribute, properties) as runner:
        runner.enqueue(b"content", color="red", shade="dark", kept="k")
        runner.run()
        [sent] = runner.sent("success")
    assert sent.content == b"content"
    assert sent.attributes["color"] == "dark-red"
    assert sent.attributes["shade"] == "new"
    assert sent.attributes["kept"] == "k"
    assert sent.attributes["at"].isdigit()


def test_attributes_are_removed_by_pattern_but_never_those_every_flowfile_has() -> None:
    with ProcessorRunner(UpdateAttribute, {"delete": ".*e.*|uuid|path"}) as runner:
        runner.enqueue(red="1", blue="2", gold="3")
        runner.run()
        [sent] = runner.sent("success")
    assert sent.attributes.keys() == {"uuid", "filename", "path", "gold"}


def test_an_expression_that_does_not_work_out_sets_nothing_and_fails() -> None:
    with ProcessorRunner(UpdateAttribute, {"a": "1", "b": "${n:plus(1)}"}) as runner:
        runner.enqueue(n="x")
        runner.enqueue(n="2")
        runner.run()
        [failed], [sent] = runner.sent("failure"), runner.sent("success")
    assert "not a number" in failed.attributes["error.reason"]
    assert "a" not in failed.attributes
    assert sent.attributes["b"] == "3"


ROUTES: list[tuple[str, dict[str, str], set[str]]] = [
    ("each", {"color": "red", "size": "9"}, {"red", "big"}),
    ("each", {"color": "red", "size": "1"}, {"red"}),
    ("each", {"color": "blue", "size": "1"}, {"unmatched"}),
    ("all", {"color": "red", "size": "9"}, {"matched"}),
    ("all", {"color": "red", "size": "1"}, {"unmatched"}),
    ("any", {"color": "red", "size": "1"}, {"matched"}),
    ("any", {"color": "blue", "size": "1"}, {"unmatched"}),
    ("any", {"color": "blue", "size": "x"}, {"failure"}),
]


@pytest.mark.parametrize(("route", "attributes", "expected"), ROUTES)
def test_routes_by_attributes(route: str, attributes: dict[str, str], expected: set[str]) -> None:
    rules = {"route": route, "red": "${color:equals('red')}", "big": "${size:gt(5)}"}
    with ProcessorRunner(RouteOnAttribute, rules) as runner:
        runner.enqueue(b"c", attributes)
        runner.run()
        assert runner.counts() == dict.fromkeys(expected, 1)
        for name in expected:
            [sent] = runner.sent(name)
            assert sent.content == b"c"


def test_a_rule_that_is_no_boolean_fails_with_the_reason() -> None:
    with ProcessorRunner(RouteOnAttribute, {"red": "${color}"}) as runner:
        runner.enqueue(color="perhaps")
        runner.run()
        [failed] = runner.sent("failure")
    assert "not a boolean" in failed.attributes["error.reason"]


def test_attributes_are_logged_on_one_line_without_those_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with ProcessorRunner(
        LogAttribute, {"ignore": "secret.*|uuid|path", "prefix": "> ", "content": "5"}
    ) as runner:
        runner.enqueue(b"he\xfflo world", {"secret.key": "x", "lines": "a\nb"})
        runner.run()
        assert runner.counts() == {"success": 1}
    [line] = [r.getMessage() for r in caplog.records if "> " in r.getMessage()]
    assert "\n" not in line
    assert "secret" not in line
    assert "lines='a\\nb'" in line
    assert line.endswith(r"content: 'he\\xfflo'")


def test_only_attributes_that_are_named_are_logged_at_the_level_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with ProcessorRunner(LogAttribute, {"attributes": "color,none", "level": "warning"}) as runner:
        runner.enqueue(color="red", other="x")
        runner.run()
    [record] = [r for r in caplog.records if "color" in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert "other" not in record.getMessage()
    caplog.clear()
    with ProcessorRunner(LogAttribute, {"level": "debug"}) as runner:
        runner.enqueue(color="red")
        runner.run()
    assert not caplog.records


def test_a_flowfile_is_tried_again_so_often_and_no_more() -> None:
    with ProcessorRunner(RetryFlowFile, {"most": 2, "why": "tried ${flowfile.retries}"}) as runner:
        attributes: dict[str, str] = {"kept": "k"}
        for tried in ("1", "2"):
            runner.enqueue(b"c", attributes)
            runner.run()
            [sent] = runner.sent("retry")
            assert sent.is_penalized
            assert sent.attributes["flowfile.retries"] == tried
            attributes = {
                name: value
                for name, value in sent.attributes.items()
                if name not in {"uuid", "filename", "path"}
            }
            runner.clear()
        runner.enqueue(b"c", attributes)
        runner.run()
        [sent] = runner.sent("exceeded")
    assert sent.attributes["why"] == "tried 2"
    assert "flowfile.retries" not in sent.attributes
    assert "flowfile.retries.by" not in sent.attributes
    assert sent.attributes["kept"] == "k"
    assert not sent.is_penalized


def test_the_count_of_another_processor_fails_or_begins_anew() -> None:
    counted = {"flowfile.retries": "9", "flowfile.retries.by": "other"}
    with ProcessorRunner(RetryFlowFile) as runner:
        runner.enqueue(b"", counted)
        runner.run()
        [failed] = runner.sent("failure")
    assert "processor other" in failed.attributes["error.reason"]
    with ProcessorRunner(RetryFlowFile, {"reuse": "reset", "penalize": False}) as runner:
        runner.enqueue(b"", counted)
        runner.run()
        [sent] = runner.sent("retry")
    assert sent.attributes["flowfile.retries"] == "1"
    assert sent.attributes["flowfile.retries.by"] == PROCESSOR_ID
    assert not sent.is_penalized


@pytest.mark.parametrize("count", ["", "-1", "1.5", "many", "9" * 20, "²"])
def test_a_count_that_is_none_fails(count: str) -> None:
    with ProcessorRunner(RetryFlowFile) as runner:
        runner.enqueue(b"", {"flowfile.retries": count})
        runner.run()
        [failed] = runner.sent("failure")
    assert "is not a number of retries" in failed.attributes["error.reason"]


@pytest.mark.parametrize(
    ("processor", "properties", "place"),
    [
        (UpdateAttribute, {}, ""),
        (UpdateAttribute, {"uuid": "x"}, "uuid"),
        (UpdateAttribute, {"delete": "("}, "delete"),
        (UpdateAttribute, {"a": "${b"}, "a"),
        (RouteOnAttribute, {}, ""),
        (RouteOnAttribute, {"failure": "true"}, "failure"),
        (RouteOnAttribute, {"a": "true", "route": "some"}, "route"),
        (LogAttribute, {"content": "2 MB"}, "content"),
        (RetryFlowFile, {"most": -1}, "most"),
        (RetryFlowFile, {"attribute": "uuid"}, "attribute"),
    ],
)
def test_a_wrong_configuration_names_the_property(
    processor: type[Processor], properties: dict[str, PropertyValue], place: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        processor.configured(properties)
    assert [problem.place for problem in refused.value.problems] == [place]

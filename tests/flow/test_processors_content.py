"""RouteOnContent."""

from __future__ import annotations

import pytest

from penstock.flow.processor import InvalidConfiguration, PropertyValue
from penstock.flow.processors.routing.route_on_content import RouteOnContent
from penstock.testing.flow import ProcessorRunner


@pytest.mark.parametrize(
    ("match", "content", "expected"),
    [
        ("find", b"an ERROR of 12", {"error", "digits"}),
        ("find", b"an ERROR", {"error"}),
        ("find", b"fine", {"unmatched"}),
        ("find", b"", {"unmatched"}),
        ("whole", b"12", {"digits"}),
        ("whole", b"x12", {"unmatched"}),
        ("whole", b"123456789012345678901", {"failure"}),
    ],
)
def test_routes_by_content(match: str, content: bytes, expected: set[str]) -> None:
    properties = {"match": match, "buffer_size": "20", "error": "ERROR", "digits": r"\d+"}
    with ProcessorRunner(RouteOnContent, properties) as runner:
        runner.enqueue(content)
        runner.run()
        assert runner.counts() == dict.fromkeys(expected, 1)


def test_only_the_beginning_is_looked_at_however_long_it_is() -> None:
    with ProcessorRunner(RouteOnContent, {"buffer_size": "10", "end": "END"}) as runner:
        runner.enqueue(b"x" * 1_000 for _ in range(100))
        runner.enqueue(b"xxxxxxxEND and so on")
        runner.enqueue(b"xxxxxxxxEND")
        runner.run()
        assert runner.counts() == {"end": 1, "unmatched": 2}
        assert runner.statistics.read_bytes < 100_000


def test_text_is_read_by_its_character_set_and_other_bytes_match_the_replacement() -> None:
    with ProcessorRunner(RouteOnContent, {"e": "é", "broken": "\ufffd"}) as runner:
        runner.enqueue("é".encode())
        runner.enqueue(b"\xe9")
        runner.run()
        assert runner.counts() == {"e": 1, "broken": 1}
    with ProcessorRunner(RouteOnContent, {"character_set": "latin-1", "e": "é"}) as runner:
        runner.enqueue(b"\xe9")
        runner.run()
        assert runner.counts() == {"e": 1}


def test_a_character_that_the_bound_cuts_is_left_out() -> None:
    with ProcessorRunner(RouteOnContent, {"buffer_size": "2", "broken": "\ufffd"}) as runner:
        runner.enqueue("aéb".encode())
        runner.run()
        assert runner.counts() == {"unmatched": 1}


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({}, ""),
        ({"a": "("}, "a"),
        ({"unmatched": "x"}, "unmatched"),
        ({"a": "x", "buffer_size": "65 MB"}, "buffer_size"),
        ({"a": "x", "character_set": "hex"}, "character_set"),
        ({"a": "x", "character_set": "klingon"}, "character_set"),
    ],
)
def test_a_wrong_configuration_names_the_property(
    properties: dict[str, PropertyValue], place: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        RouteOnContent.configured(properties)
    assert [problem.place for problem in refused.value.problems] == [place]

"""Prioritizers and sizes as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import (
    STANDARD,
    BatchPrioritizer,
    NewestFlowFileFirst,
    OldestFlowFileFirst,
    Prioritizer,
    PriorityAttribute,
    SortOrder,
    prioritizer_named,
)
from penstock.flow.queue.queue_size import parse_size
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from tests.flow.flow_queue_kit import ByNumber, flowfile, ids


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1 GB", 1 << 30),
        ("10kb", 10 << 10),
        (" 1.5 MB ", 3 << 19),
        (".5 KB", 512),
        ("1. B", 1),
        ("0 B", 0),
        ("2TB", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1", "GB", "1 GiB", "-1 GB", "1 GB please", "1e3 KB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a size"):
        parse_size(text)


def in_order(flowfiles: list[FlowFile], *prioritizers: Prioritizer) -> list[FlowFile]:
    keys = SortOrder(prioritizers).keys(flowfiles)
    return [one for _, one in sorted(zip(keys, flowfiles, strict=True))]


def test_priority_attribute_orders_numbers_then_text_then_none() -> None:
    ordered = [
        "-9223372036854775808", "-2", "0", "01", "1", " 1", "10",
        "", "+1", "1.5", "9223372036854775808", "high", "low", None,
    ]  # fmt: skip
    expected = sorted(ordered[:7], key=lambda one: (int(one), one)) + ordered[7:]
    flowfiles = [flowfile(number, priority) for number, priority in enumerate(ordered)]
    ranked = in_order(flowfiles, PriorityAttribute())
    assert [one.attributes.get("priority") for one in ranked] == expected


def test_oldest_and_newest_are_reverse() -> None:
    flowfiles = [
        flowfile(n, lineage_start_ms=start, lineage_index=index)
        for n, (start, index) in enumerate([(5, 1), (5, 0), (4, 9), (6, 0)])
    ]
    assert ids(in_order(flowfiles, OldestFlowFileFirst())) == [2, 1, 0, 3]
    assert ids(in_order(flowfiles, NewestFlowFileFirst())) == [3, 0, 1, 2]


def test_without_prioritizers_the_place_of_the_content_decides() -> None:
    def at(number: int, resource: str | None, offset: int = 0, inside: int = 0) -> FlowFile:
        claim = None if resource is None else ContentClaim(ResourceClaim(resource), offset, 9)
        return FlowFile(number, {}, 1, claim, inside)

    wanted = [
        at(8, None), at(9, None), at(7, "a"), at(6, "a", 5), at(4, "a", 5, 2), at(5, "a", 5, 2),
        at(1, "b"),
    ]  # fmt: skip
    assert in_order([*wanted[3:], *wanted[:3]]) == wanted


@given(st.lists(st.tuples(st.none() | st.text(max_size=3) | st.integers(), st.integers(0, 3))))
def test_keys_of_many_are_the_keys_of_each(values: list[tuple[object, int]]) -> None:
    flowfiles = [
        flowfile(n, priority, queued_ms=time, lineage_start_ms=time)
        for n, (priority, time) in enumerate(values)
    ]
    for make in STANDARD.values():
        one = make()
        assert isinstance(one, BatchPrioritizer)
        assert one.keys(flowfiles) == [one.key(flowfile) for flowfile in flowfiles]


def test_prioritizers_are_found_by_name_and_orders_by_text() -> None:
    name = "org.apache.nifi.prioritizer.PriorityAttributePrioritizer"
    assert prioritizer_named(name).name == "PriorityAttributePrioritizer"
    with pytest.raises(InvalidRequest, match="FirstInFirstOutPrioritizer"):
        prioritizer_named("Fastest")
    assert SortOrder([ByNumber(3)]).text != SortOrder([ByNumber(4)]).text

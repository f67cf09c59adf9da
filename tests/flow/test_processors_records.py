"""ConvertRecord, SplitRecord, MergeRecord."""

from __future__ import annotations

import io

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Unavailable
from penstock.flow.processor import InvalidConfiguration, Processor, PropertyValue
from penstock.flow.processors.records.convert_record import ConvertRecord
from penstock.flow.processors.records.merge_record import (
    BinBounds,
    MergeBins,
    MergeRecord,
    plan_bins,
    plan_parts,
)
from penstock.flow.processors.records.split_record import SplitRecord
from penstock.testing.flow import ProcessorRunner

LINES = b'{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n{"a":3,"b":null}\n'
FORMATS = ["json-lines", "json", "csv", "parquet", "avro", "arrow"]


def properties(source: str, target: str, **more: PropertyValue) -> dict[str, PropertyValue]:
    return {"input_format": source, "output_format": target, **more}


# -- ConvertRecord


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("middle", FORMATS)
def test_records_are_the_same_after_any_two_conversions(middle: str, target: str) -> None:
    content = LINES
    for source, to in [("json-lines", middle), (middle, target), (target, "json-lines")]:
        with ProcessorRunner(ConvertRecord, properties(source, to)) as runner:
            runner.enqueue(content)
            runner.run()
            [sent] = runner.sent("success")
        content = sent.content
        assert sent.attributes["record.count"] == "3"
    assert content == LINES
    assert sent.attributes["mime.type"] == "application/x-ndjson"


def test_content_that_is_not_of_the_format_fails_and_stays() -> None:
    with ProcessorRunner(ConvertRecord, properties("json-lines", "parquet")) as runner:
        for content in (b"\x00\x01", b'{"a":1}\n{"a":"x"}\n', b'{"a":{}}'):
            runner.enqueue(content)
        runner.run(3)
        failed = runner.sent("failure")
    assert [sent.content for sent in failed] == [b"\x00\x01", b'{"a":1}\n{"a":"x"}\n', b'{"a":{}}']
    assert all(sent.attributes["error.reason"] for sent in failed)
    assert all("record.count" not in sent.attributes for sent in failed)


def test_an_error_far_behind_leaves_the_flowfile_as_it_was() -> None:
    content = b'{"a":1}\n' * 1_000_000 + b'{"a":"x"}\n'
    options = properties("json-lines", "json-lines", schema="a long")
    with ProcessorRunner(ConvertRecord, options) as runner:
        runner.enqueue(content)
        runner.run()
        [failed] = runner.sent("failure")
    assert failed.content == content


def test_an_empty_content_is_no_record() -> None:
    with ProcessorRunner(ConvertRecord, properties("json-lines", "json")) as runner:
        runner.enqueue(b"")
        runner.run()
        [sent] = runner.sent("success")
    assert sent.content == b"[]"
    assert sent.attributes["record.count"] == "0"


def test_a_schema_chooses_fields_or_refuses_others() -> None:
    options = properties("json-lines", "json-lines", schema="a double")
    with ProcessorRunner(ConvertRecord, options) as runner:
        runner.enqueue(LINES)
        runner.run()
        [sent] = runner.sent("success")
    assert sent.content == b'{"a":1.0}\n{"a":2.0}\n{"a":3.0}\n'
    with ProcessorRunner(ConvertRecord, {**options, "refuse_others": True}) as runner:
        runner.enqueue(LINES)
        runner.run()
        assert runner.counts() == {"failure": 1}


def test_tabs_separate_when_asked_for() -> None:
    options = properties("csv", "json-lines", csv_separator="tab", csv_header=False)
    with ProcessorRunner(ConvertRecord, options) as runner:
        runner.enqueue(b"1\tx\n")
        runner.run()
        assert runner.sent("success")[0].content == b'{"f0":1,"f1":"x"}\n'


# -- SplitRecord


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_records_are_split_in_order(source: str, size: int) -> None:
    rows = [{"n": number} for number in range(5)]
    content = converted(b"".join(orjson.dumps(row) + b"\n" for row in rows), source)
    options: dict[str, PropertyValue] = {"input_format": source, "records_per_split": size}
    with ProcessorRunner(SplitRecord, options) as runner:
        fed = runner.enqueue(content)
        runner.run()
        parts, [original] = runner.sent("splits"), runner.sent("original")
    count = -(-5 // size)
    assert original.content == content
    assert original.attributes["fragment.count"] == str(count)
    assert [part.attributes["fragment.index"] for part in parts] == [str(n) for n in range(count)]
    assert {part.attributes["fragment.identifier"] for part in parts} == {fed.attributes["uuid"]}
    found = [orjson.loads(converted(part.content, "json", source)) for part in parts]
    assert found == [rows[start : start + size] for start in range(0, 5, size)]
    assert [part.attributes["record.count"] for part in parts] == [str(len(f)) for f in found]


def converted(content: bytes, target: str, source: str = "json-lines") -> bytes:
    with ProcessorRunner(ConvertRecord, properties(source, target)) as runner:
        runner.enqueue(content)
        runner.run()
        return runner.sent("success")[0].content


def test_lines_are_split_without_a_copy() -> None:
    with ProcessorRunner(
        SplitRecord, {"input_format": "json-lines", "records_per_split": 100}
    ) as runner:
        runner.enqueue(b'{"a":1}\n' * 100_000)
        runner.run()
        parts = runner.sent("splits")
        assert len(parts) == 1_000
        assert len({part.flowfile.claim for part in parts}) == 1
        assert runner.statistics.written_bytes == 0


@given(st.lists(st.sampled_from(["{}", "", " ", "\r", '{"a":1}']), max_size=12), st.integers(1, 4))
def test_blank_lines_are_no_records(lines: list[str], size: int) -> None:
    content = "\n".join(lines).encode()
    with ProcessorRunner(
        SplitRecord, {"input_format": "json-lines", "records_per_split": size}
    ) as runner:
        runner.enqueue(content)
        runner.run()
        parts = runner.sent("splits")
    records = [line for line in lines if line.strip()]
    found = [[x for x in part.content.decode().split("\n") if x.strip()] for part in parts]
    assert found == [records[n : n + size] for n in range(0, len(records), size)]
    assert [part.attributes["record.count"] for part in parts] == [str(len(f)) for f in found]


def test_too_many_parts_or_bad_content_fail_whole() -> None:
    options: dict[str, PropertyValue] = {
        "input_format": "csv",
        "records_per_split": 1,
        "max_splits": 2,
    }
    with ProcessorRunner(SplitRecord, options) as runner:
        runner.enqueue(b"a\n1\n2\n3\n")
        runner.enqueue(b"a,b\n1,2\n3\n")
        runner.enqueue(b"a\n1\n2\n")
        runner.run(3)
        assert runner.counts() == {"failure": 2, "splits": 2, "original": 1}
        assert "max_splits" in runner.sent("failure")[0].attributes["error.reason"]


# -- MergeRecord


def test_a_bin_is_merged_when_it_has_enough_and_waits_in_the_queue_until_then() -> None:
    options: dict[str, PropertyValue] = {"input_format": "json-lines", "min_records": 3}
    with ProcessorRunner(MergeRecord, options) as runner:
        runner.enqueue(b'{"a":1}', color="red", size="1")
        runner.enqueue(b'{"a":2}\n', color="red", size="2")
        runner.run()
        assert runner.counts() == {}
        assert len(runner.queued) == 2
        assert runner.yielded_ms == 1_000
        runner.restart()
        runner.enqueue(b'{"a":"x"}', color="red", size="3")
        runner.run()
        [merged] = runner.sent("merged")
        assert len(runner.sent("original")) == 3
        runner.run()
        assert runner.yielded_ms == 0
    assert merged.content == b'{"a":1}\n{"a":2}\n{"a":"x"}\n'
    assert merged.attributes["color"] == "red"
    assert "size" not in merged.attributes
    assert merged.attributes["merge.count"] == "3"
    assert merged.attributes["record.count"] == "3"


def test_a_bin_is_merged_when_its_oldest_waited_long_enough() -> None:
    options: dict[str, PropertyValue] = {
        "input_format": "json-lines", "min_records": 9, "max_age": "10 sec"
    }  # fmt: skip
    with ProcessorRunner(MergeRecord, options) as runner:
        runner.enqueue(b"{}")
        runner.advance(9_500)
        runner.run()
        assert runner.counts() == {}
        assert runner.yielded_ms == 500
        runner.enqueue(b"{}")
        runner.advance(500)
        runner.run()
        assert runner.sent("merged")[0].attributes["merge.count"] == "2"


def test_correlation_and_bounds_make_bins() -> None:
    options: dict[str, PropertyValue] = {
        "input_format": "json-lines", "correlation": "k", "max_records": 2, "min_records": 2
    }  # fmt: skip
    with ProcessorRunner(MergeRecord, options) as runner:
        for key in "abaab":
            runner.enqueue(b'"%s"' % key.encode(), k=key)
        runner.run()
        merged = [sent.content for sent in runner.sent("merged")]
        assert merged == [b'"a"\n"a"\n', b'"b"\n"b"\n']
        assert [flowfile.attributes["k"] for flowfile in runner.queued] == ["a"]


@pytest.mark.parametrize("target", FORMATS)
def test_fields_of_all_are_in_the_result(target: str) -> None:
    options = properties("json-lines", target, min_records=2)
    with ProcessorRunner(MergeRecord, options) as runner:
        runner.enqueue(b'{"a":1}')
        runner.enqueue(b'{"a":1.5,"b":"x"}')
        runner.run()
        [merged] = runner.sent("merged")
    if target != "json-lines":
        result = orjson.loads(converted(merged.content, "json", target))
        assert result == [{"a": 1, "b": None}, {"a": 1.5, "b": "x"}]


def test_what_cannot_be_read_fails_and_the_others_are_merged() -> None:
    options = properties("csv", "json-lines", min_records=3)
    with ProcessorRunner(MergeRecord, options) as runner:
        for content in (b"a\n1\n", b"a,b\n1\n", b"a\n2\n"):
            runner.enqueue(content)
        runner.run()
        [merged], [failed] = runner.sent("merged"), runner.sent("failure")
        assert len(runner.sent("original")) == 2
    assert merged.content == b'{"a":1}\n{"a":2}\n'
    assert failed.content == b"a,b\n1\n"
    assert "Expected 2 columns" in failed.attributes["error.reason"]


def test_fields_of_types_that_do_not_fit_fail_together() -> None:
    with ProcessorRunner(MergeRecord, properties("json", "json", min_records=2)) as runner:
        runner.enqueue(b'[{"a":1}]')
        runner.enqueue(b'[{"a":"x"}]')
        runner.run()
        assert runner.counts() == {"failure": 2}


def test_parts_are_put_together_in_their_order_and_incomplete_ones_fail() -> None:
    options: dict[str, PropertyValue] = {
        "input_format": "json-lines", "strategy": "parts", "max_age": "1 min"
    }  # fmt: skip
    with ProcessorRunner(MergeRecord, options) as runner:
        for name, index, parts in [("x", 1, 2), ("y", 0, 3), ("x", 0, 2), ("y", 2, 3)]:
            fragment = {
                "fragment.identifier": name,
                "fragment.index": str(index),
                "fragment.count": str(parts),
                "segment.original.filename": f"{name}.json",
            }
            runner.enqueue(b"%d" % index, fragment)
        runner.run()
        [merged] = runner.sent("merged")
        assert merged.content == b"0\n1\n"
        assert merged.attributes["filename"] == "x.json"
        runner.advance(60_000)
        runner.run()
        failed = runner.sent("failure")
    assert [sent.content for sent in failed] == [b"0", b"2"]
    assert "only 2 of 3 parts" in failed[0].attributes["error.reason"]


def test_what_could_not_be_committed_is_merged_again() -> None:
    with ProcessorRunner(MergeRecord, {"input_format": "json-lines"}) as runner:
        runner.enqueue(b"{}")

        def full_disk() -> None:
            raise Unavailable("no space left; free some")

        runner.before_commit(full_disk)
        with pytest.raises(Unavailable):
            runner.run()
        runner.before_commit(lambda: None)
        runner.advance(60_000)
        runner.run()
        assert runner.counts() == {"merged": 1, "original": 1}


_waiting = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(1, 4), st.integers(0, 30), st.integers(0, 20),
        st.integers(0, 3), st.integers(0, 4),
    ),
    max_size=12,
)  # fmt: skip
_bounds = st.builds(
    BinBounds, st.integers(1, 5), st.integers(5, 8), st.integers(0, 20), st.integers(20, 60),
    st.none() | st.integers(0, 30), st.integers(1, 2),
)  # fmt: skip


@given(_waiting, _bounds, st.booleans(), st.booleans())
def test_plans_keep_bounds_and_order_and_put_each_in_one_bin(
    given_: list[tuple[str, int, int, int, int, int]], bounds: BinBounds, must: bool, parts: bool
) -> None:
    waiting = [MergeBins(number, *fields) for number, fields in enumerate(given_)]
    planned = plan_parts if parts else plan_bins
    plan = planned(waiting, bounds, 30, must=must)
    chosen = [*plan.ready, *plan.incomplete]
    ids = [one.id for one_bin in chosen for one in one_bin.waiting]
    assert len(ids) == len(set(ids))
    for one_bin in chosen:
        assert len({one.key for one in one_bin.waiting}) == 1
    if not parts:
        assert not plan.incomplete
        for one_bin in plan.ready:
            order = [one.id for one in one_bin.waiting]
            assert order == sorted(order)
            assert one_bin.records <= bounds.max_records or len(order) == 1
            assert one_bin.size_bytes <= bounds.max_bytes or len(order) == 1
    left = {one.key for one in waiting if one.id not in ids}
    assert plan.waits == bool(left)
    assert len(left) <= bounds.max_bins
    assert not (must and waiting and not chosen)
    assert (plan.due_ms is None) == (bounds.max_age_ms is None or not left)
    if plan.due_ms is not None:
        assert plan.due_ms > 30
        later = planned([w for w in waiting if w.id not in ids], bounds, plan.due_ms)
        assert later.ready or later.incomplete


@pytest.mark.parametrize(
    ("processor", "given_", "place"),
    [
        (ConvertRecord, {"output_format": "json"}, "input_format"),
        (ConvertRecord, properties("json", "xml"), "output_format"),
        (ConvertRecord, properties("json", "csv", schema="a number"), "schema"),
        (ConvertRecord, properties("json", "csv", csv_separator=";;"), "csv_separator"),
        (ConvertRecord, properties("json", "csv", max_record="1 MB"), "max_record"),
        (SplitRecord, {"input_format": "json", "records_per_split": 0}, "records_per_split"),
        (MergeRecord, {"input_format": "json", "min_records": 0}, "min_records"),
        (MergeRecord, {"input_format": "json", "min_size": "1 GB"}, "min_size"),
        (MergeRecord, {"input_format": "json", "max_bins": 0}, "max_bins"),
    ],
)
def test_a_wrong_configuration_names_the_property(
    processor: type[Processor], given_: dict[str, PropertyValue], place: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        processor.configured(given_)
    assert [problem.place for problem in refused.value.problems] == [place]


def test_parquet_is_written_in_large_row_groups() -> None:
    with ProcessorRunner(ConvertRecord, properties("csv", "parquet")) as runner:
        runner.enqueue(b"a,b\n" + b"1,some text that is long enough\n" * 300_000)
        runner.run()
        [sent] = runner.sent("success")
    file = pq.ParquetFile(pa.BufferReader(sent.content))
    assert file.metadata.num_rows == 300_000
    assert file.metadata.num_row_groups == 1
    assert io.BytesIO(sent.content).read(4) == b"PAR1"

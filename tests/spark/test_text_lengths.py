"""`maxStringLength`: how much of a dimension's text stays, wherever rows are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import ETERNITY
from penstock.indexing.engine import MergeRequest
from penstock.indexing.specs import SpecError, parse_data_schema
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine, SparkBatchOptions
from tests.spark.fold_kit import COMPUTED, COUNT, kept_of, schema_of
from tests.spark.spark_batch_kit import inline, request, rows_of
from tests.spark.stream_kit import persist_request

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from penstock.indexing.engine import DataFile
    from penstock.spark.connect.spark_sessions import SparkSessions
    from penstock.spark.spark_engine import SparkEngine
    from tests.spark.conftest import MakeTopic

SHOP: dict[str, JsonValue] = {"name": "shop", "maxStringLength": 3}


def expected(text: str | None) -> str | None:
    is_list = text is not None and text.startswith("[") and text.endswith("]")
    return text if text is None or is_list else text[:3]


@given(st.lists(st.none() | st.text(max_size=6) | st.just('["a","b"]')), st.booleans())
def test_text_is_cut_and_stays_cut(texts: list[str | None], rollup: bool) -> None:
    assert kept_of(texts, SHOP, rollup=rollup) == [expected(text) for text in texts]


@pytest.mark.spark
@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("rollup", [False, True])
def test_a_batch_cuts_text(
    sessions: SparkSessions, tmp_path: Path, is_computed: bool, rollup: bool
) -> None:
    values: list[JsonValue] = ["abcd", "abce", "ab", None, ["first", "second"], "åß漢字", 12345]
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": [SHOP, "place"]},
        "metricsSpec": COUNT,
        "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
    }
    given = inline(*({"at": "2024-01-01", "shop": value, "place": "PLACE"} for value in values))
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    result = engine.write(request(tmp_path, given, parts, {"rollup": rollup}))
    found = sorted((str(row["shop"]), row["place"], row["count"]) for row in rows_of(result))
    texts = ["abc", "abc", "ab", "None", '["first","second"]', "åß漢", "123"]
    kept = {text: texts.count(text) if rollup else 1 for text in texts}
    wanted = sorted(set(texts)) if rollup else sorted(texts)
    assert found == [(text, "PLACE", kept[text]) for text in wanted]


@pytest.mark.spark
@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("rollup", [False, True])
def test_a_stream_cuts_text(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, is_computed: bool, rollup: bool
) -> None:
    values: list[JsonValue] = ["abcd", "abce", "ab", None, ["first", "second"], "åß漢字", 12345]
    schema = parse_data_schema(
        {
            **schema_of(SHOP, "place"),
            "timestampSpec": {"column": "at", "format": "auto"},
            "metricsSpec": COUNT,
            "granularitySpec": {"segmentGranularity": "all", "rollup": rollup},
            "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
        }
    )
    messages = [orjson.dumps({"at": "2024-01-01", "shop": v, "place": "PLACE"}) for v in values]
    made = engine.persist(persist_request(tmp_path, make_topic(messages), schema))
    assert made.counts.processed == len(values)
    texts = ["abc", "abc", "ab", "None", '["first","second"]', "åß漢", "123"]

    def expected_rows(times: int) -> list[tuple[str, str, int]]:
        kept = {text: times * texts.count(text) if rollup else 1 for text in texts}
        found = sorted(set(texts)) if rollup else sorted(texts * times)
        return [(text, "PLACE", kept[text]) for text in found]

    (file,) = made.files
    assert rows_in(file) == expected_rows(1)
    # Equal texts become one row also when what was cut is merged.
    both = MergeRequest("task", ETERNITY, (file, file), schema, str(tmp_path / "merged"))
    assert rows_in(engine.merge(both)) == expected_rows(2)


def rows_in(file: DataFile) -> list[tuple[str, str, int]]:
    rows = pq.read_table(file.path).to_pylist()
    return sorted((str(row["shop"]), row["place"], row["count"]) for row in rows)


@pytest.mark.parametrize(
    ("dimension", "wrong"),
    [
        ({"name": "a", "maxStringLength": 0}, "must be at least 1, not 0"),
        ({"name": "a", "maxStringLength": "long"}, "must be a whole number"),
        ({"name": "a", "maxStringLength": True}, "must be a whole number, not true"),
        ({"name": "a", "type": "long", "maxStringLength": 5}, "only text has a length"),
        ({"name": "a", "type": "json", "maxStringLength": 5}, "only text has a length"),
    ],
)
def test_what_is_no_length_is_refused(dimension: JsonValue, wrong: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_data_schema(schema_of(dimension))
    (found,) = raised.value.mistakes
    assert found.place == "dimensionsSpec.dimensions[0].maxStringLength"
    assert wrong in found.message


def test_a_length_that_is_not_set_is_not_written() -> None:
    bare = parse_data_schema(schema_of("a", {"name": "b", "maxStringLength": None}))
    written = bare.model_dump(mode="json", by_alias=True)["dimensionsSpec"]["dimensions"]
    assert all("maxStringLength" not in dimension for dimension in written)
    found = parse_data_schema(schema_of(SHOP))
    assert parse_data_schema(found.model_dump(mode="json", by_alias=True)) == found
    assert found.dimensions[0].max_string_length == 3

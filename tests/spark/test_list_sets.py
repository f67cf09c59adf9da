"""`multiValueHandling`: what becomes of lists, wherever rows are computed.

With `sorted_array` and `sorted_set` rows with the same values are the same, however their lists
were written, so they roll up; what is no list must stay as it is, and without them so must lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import ETERNITY
from penstock.indexing.batch.batch_engine import Partitioning
from penstock.indexing.engine import MergeRequest
from penstock.indexing.specs import SpecError, parse_data_schema
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine, SparkBatchOptions
from penstock.spark.rollup import fold_of
from penstock.spark.topic.value_sets import in_order
from tests.spark.fold_kit import COMPUTED, COUNT, kept_of, schema_of
from tests.spark.spark_batch_kit import external, inline, request, rows_of
from tests.spark.stream_kit import persist_request

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from penstock.spark.connect.spark_sessions import SparkSessions
    from penstock.spark.spark_engine import SparkEngine
    from tests.spark.conftest import MakeTopic

TAGS: dict[str, JsonValue] = {"name": "tags", "multiValueHandling": "SORTED_SET"}
ORDERED: dict[str, JsonValue] = {"name": "tags", "multiValueHandling": "SORTED_ARRAY"}
BOTH = pytest.mark.parametrize("tags", [TAGS, ORDERED], ids=["sorted_set", "sorted_array"])
# Each value of one with each value of another.
PAIRS = pytest.mark.parametrize(
    ("tags", "is_computed", "rollup"),
    [(TAGS, False, False), (TAGS, True, True), (ORDERED, False, True), (ORDERED, True, False)],
)
# What is sent, and what is kept of it as a set.
SENT: list[tuple[JsonValue, str | None]] = [
    (["b", "a", "b"], '["a","b"]'),
    (["a", "b"], '["a","b"]'),
    (["a"], '["a"]'),
    ("a", "a"),
    ([], "[]"),
    (None, None),
    ([None, "a", None], '[null,"a"]'),
    ([10, 9, "10", 2.5, True], '["10","2.5","9","true"]'),
    ('["text","is a list"]', '["is a list","text"]'),
    ("[1] and [0]", "[1] and [0]"),
    ("[no list]", "[no list]"),
    ({"b": 1, "a": [2, 1]}, '{"b":1,"a":[2,1]}'),
    ([[2, 1], [2, 1], {"b": 1}], '["[2,1]","{\\"b\\":1}"]'),
]


# Where a list has a value more than once, it has it as often in order.
TWICE: dict[str | None, str] = {
    '["a","b"]': '["a","b","b"]',
    '[null,"a"]': '[null,null,"a"]',
    '["[2,1]","{\\"b\\":1}"]': '["[2,1]","[2,1]","{\\"b\\":1}"]',
    '["10","2.5","9","true"]': '["10","10","2.5","9","true"]',
}


def kept_by(tags: dict[str, JsonValue]) -> list[str | None]:
    """What a dimension keeps of what is sent."""
    sets = [kept for _, kept in SENT]
    if tags is TAGS:
        return sets
    return [kept if sent == ["a", "b"] else TWICE.get(kept, kept) for sent, kept in SENT]


def counted(texts: list[str | None], rollup: bool) -> list[tuple[str, int]]:
    """The rows that a count gives of such text."""
    if not rollup:
        return sorted((str(text), 1) for text in texts)
    return sorted((str(text), texts.count(text)) for text in set(texts))


@BOTH
@pytest.mark.parametrize("number", range(len(SENT)))
def test_a_list_is_put_in_order_and_all_else_stays(number: int, tags: dict[str, JsonValue]) -> None:
    sent, kept = SENT[number][0], kept_by(tags)[number]
    is_text = sent is None or isinstance(sent, str)
    text = sent if is_text else orjson.dumps(sent).decode()
    made = in_order(pa.array([text, None, text], pa.string()), sets=tags is TAGS)
    assert made.to_pylist() == [kept, None, kept]


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]]",
        "[1,]",
        "['a']",
        "[NaN]",
        '["\\ud800"]',
        "[" * 2000 + "]" * 2000,
        "[1]]",
        " [2,1]",
    ],
)
@pytest.mark.parametrize("sets", [False, True])
def test_what_is_no_list_in_json_stays(text: str, sets: bool) -> None:
    assert in_order(pa.array([text], pa.string()), sets=sets).to_pylist() == [text]


def test_a_list_that_is_nested_too_deep_to_be_written_stays() -> None:
    text = "[" * 600 + "]" * 600
    assert in_order(pa.array([text], pa.string()), sets=True).to_pylist() == [text]


def test_values_are_in_the_order_of_their_code_points() -> None:
    # In that of UTF-16 the second would come before the first.
    values = ["\uffee", "\U0001f600", "é", "z", "Z", ""]
    made = in_order(pa.array([orjson.dumps(values).decode()], pa.string()), sets=True)
    assert orjson.loads(made[0].as_py()) == ["", "Z", "z", "é", "\uffee", "\U0001f600"]


LISTS = st.lists(st.none() | st.integers(-3, 3) | st.text(max_size=3), max_size=5)


@given(st.lists(st.none() | st.text(max_size=6) | LISTS), st.booleans())
def test_lists_in_order_have_the_same_values_and_stay_in_order(
    sent: list[str | list[str | int | None] | None], rollup: bool
) -> None:
    texts = [orjson.dumps(one).decode() if isinstance(one, list) else one for one in sent]
    for one, kept in zip(sent, kept_of(texts, ORDERED, rollup=rollup), strict=True):
        if isinstance(one, list):
            texts_of_values = sorted(str(value) for value in one if value is not None)
            assert orjson.loads(kept) == [None] * one.count(None) + texts_of_values


@given(st.lists(st.none() | st.text(max_size=6) | LISTS), st.booleans())
def test_sets_are_the_values_and_stay_sets(
    sent: list[str | list[str | int | None] | None], rollup: bool
) -> None:
    texts = [orjson.dumps(one).decode() if isinstance(one, list) else one for one in sent]
    for one, kept in zip(sent, kept_of(texts, TAGS, rollup=rollup), strict=True):
        if isinstance(one, list):
            found = orjson.loads(kept)
            assert set(found) == {None if v is None else str(v) for v in one}
            assert len(found) == len(set(found))


@pytest.mark.spark
@PAIRS
def test_a_batch_keeps_lists_in_order(
    sessions: SparkSessions,
    tmp_path: Path,
    is_computed: bool,
    rollup: bool,
    tags: dict[str, JsonValue],
) -> None:
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": [tags, "place"]},
        "metricsSpec": COUNT,
        "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
    }
    rows = inline(*({"at": "2024-01-01", "tags": sent, "place": "PLACE"} for sent, _ in SENT))
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    result = engine.write(request(tmp_path, rows, parts, {"rollup": rollup}))
    found = sorted((str(row["tags"]), row["count"]) for row in rows_of(result))
    assert found == counted(kept_by(tags), rollup)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["hashed", "range"])
def test_equal_sets_roll_up_into_one_partition(
    sessions: SparkSessions, tmp_path: Path, kind: str
) -> None:
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": [TAGS]},
        "metricsSpec": COUNT,
    }
    names = [f"{number:02}" for number in range(20)]
    lists = [[one, two] for one in names for two in names if one != two]
    rows = inline(*({"at": "2024-01-01", "tags": one} for one in lists))
    partitioning = (
        Partitioning("hashed", shards=3, dimensions=("tags",))
        if kind == "hashed"
        else Partitioning("range", rows_target=50, dimensions=("tags",))
    )
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    result = engine.write(request(tmp_path, rows, parts, {"rollup": True}, partitioning))
    found = sorted((row["tags"], row["count"]) for row in rows_of(result))
    sets = {orjson.dumps(sorted(one)).decode() for one in lists}
    assert found == sorted((one, 2) for one in sets)
    assert len(result.files) > 1


@pytest.mark.spark
def test_lists_of_other_formats_become_sets(sessions: SparkSessions, tmp_path: Path) -> None:
    parts: dict[str, JsonValue] = {"dimensionsSpec": {"dimensions": [TAGS]}}
    times, lists = ["2024-01-01", "2024-01-02"], [["b", "a", "b"], None]
    pq.write_table(pa.table({"at": times, "tags": lists}), tmp_path / "lists.parquet")
    parquet = external(
        {"type": "local", "files": [str(tmp_path / "lists.parquet")]}, {"type": "parquet"}
    )
    csv = external(
        {"type": "inline", "data": "2024-01-01,b|a|b\n2024-01-02,\n"},
        {"type": "csv", "columns": ["at", "tags"], "listDelimiter": "|"},
    )
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    for number, given_rows in enumerate((parquet, csv)):
        result = engine.write(request(tmp_path / str(number), given_rows, parts))
        first, second = sorted(rows_of(result), key=lambda row: str(row["__time"]))
        assert first["tags"] == '["a","b"]'
        assert not second["tags"]


@pytest.mark.spark
@PAIRS
def test_a_stream_keeps_lists_in_order(
    engine: SparkEngine,
    make_topic: MakeTopic,
    tmp_path: Path,
    is_computed: bool,
    rollup: bool,
    tags: dict[str, JsonValue],
) -> None:
    schema = parse_data_schema(
        {
            **schema_of(tags, "place"),
            "timestampSpec": {"column": "at", "format": "auto"},
            "metricsSpec": COUNT,
            "granularitySpec": {"segmentGranularity": "all", "rollup": rollup},
            "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
        }
    )
    messages = [
        orjson.dumps({"at": "2024-01-01", "tags": sent, "place": "PLACE"}) for sent, _ in SENT
    ]
    made = engine.persist(persist_request(tmp_path, make_topic(messages), schema))
    assert made.counts.processed == len(messages)
    texts = kept_by(tags)

    def rows_in(path: str) -> list[tuple[str, int]]:
        return sorted((str(r["tags"]), r["count"]) for r in pq.read_table(path).to_pylist())

    (file,) = made.files
    assert rows_in(file.path) == counted(texts, rollup)
    # Equal sets become one row also when files are merged.
    both = MergeRequest("task", ETERNITY, (file, file), schema, str(tmp_path / "merged"))
    assert rows_in(engine.merge(both).path) == counted(texts * 2, rollup)


@pytest.mark.parametrize("handling", ["ARRAY", "array", None])
def test_lists_stay_as_they_were_sent_unless_an_order_is_wanted(handling: str | None) -> None:
    # Druid sorts where nothing is said; here that would change text that is a list by chance.
    told: JsonValue = {"name": "tags", "multiValueHandling": handling}
    assert fold_of(parse_data_schema(schema_of(told, rollup=False))) is None
    fold = fold_of(parse_data_schema(schema_of(told, rollup=True)))
    assert fold is not None
    assert not fold.lists


@pytest.mark.parametrize("kind", ["long", "float", "double", "json", "auto"])
@pytest.mark.parametrize("handling", ["SORTED_ARRAY", "sorted_array"])
def test_what_druid_writes_for_every_column_says_nothing_of_other_types(
    kind: str, handling: str
) -> None:
    told = schema_of({"name": "a", "type": kind, "multiValueHandling": handling})
    plain = schema_of({"name": "a", "type": kind})
    assert parse_data_schema(told) == parse_data_schema(plain)


@pytest.mark.parametrize("kind", ["long", "float", "double", "json", "auto"])
def test_only_text_has_sets(kind: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_data_schema(
            schema_of({"name": "a", "type": kind, "multiValueHandling": "sorted_set"})
        )
    (mistake,) = raised.value.mistakes
    assert mistake.place == "dimensionsSpec.dimensions[0].multiValueHandling"
    assert "only string dimensions have sets" in mistake.message


@BOTH
def test_what_is_written_is_read_again(tags: dict[str, JsonValue]) -> None:
    found = parse_data_schema(schema_of(tags, "place"))
    written = found.model_dump(mode="json", by_alias=True)
    assert parse_data_schema(written) == found
    assert (
        written["dimensionsSpec"]["dimensions"][0]["multiValueHandling"]
        == str(tags["multiValueHandling"]).lower()
    )

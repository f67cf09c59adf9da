"""What DuckDB reads is what Arrow's reader and the parser of single messages make of the lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.spark.topic import duckdb_json
from penstock.spark.topic.duckdb_json import DuckdbJson
from penstock.spark.topic.parse import MessageParser, ParsedRows
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField, TimeFormat

FIELDS = (
    ("text", FieldType.STRING),
    ("whole", FieldType.LONG),
    ("real", FieldType.DOUBLE),
    ("short", FieldType.FLOAT),
    ("flag", FieldType.BOOLEAN),
)
SHAPE = RowShape(FIELDS, TimeField("at"))
READ_AS = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_()}
CLEAN = b'{"text":"a","whole":1,"real":1.5,"flag":true}'
TIME = b'"2013-01-01T10:00:00Z"'
# Values as they stand in JSON: such as are of one kind and look like another.
VALUES = [
    *(b"null", b"true", b"false", b"0", b"7", b"-0.0", b"1.0", b"1.5", b"1e2", b"-17", b"1E-3"),
    *(b"9007199254740993", b"-9223372036854775808", b"9223372036854775808", b"[1]", b'["5"]'),
    *(b'""', b'"5"', b'" 5"', b'"5 "', b'"-5"', b'"+5"', b'".5"', b'"1_0"', b'"0x1F"', b'"1e2"'),
    *(b'"nan"', b'"inf"', b'"true"', b'"t"', b'"null"', b'"a"', b'"[1]"', b'"{}"', b'"5a"'),
    *(b'"\\u0035"', b'"\\"5"', b'"\\\\5"', b'"a\\"5"', b'"\\n5"', b'"\\/5"', b'"\\ud800"'),
    *(b'"2013-01-01"', b'"x:\\"5\\""', b'":5"', b'"a,}"', b'"\\u0000"', b'"\xff"', b'"a5"', TIME),
    *(b"{}", b'{"whole":"5"}', b"[1,]", b'"\xc3\xbc"'),
]
# In fields that nobody reads it does not matter.
NO_NUMBERS = [b"1e400", b"NaN", b"nan", b"Infinity", b"-Infinity"]
NAMES = [b"text", b"whole", b"real", b"short", b"flag", b"at"]
OTHERS = [b"other", b"5", b":"]


@pytest.fixture(autouse=True)
def _for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_json, "BYTES_MIN", 0)
    monkeypatch.setattr(duckdb_json, "COLUMNS_MIN", 1)


def parsed(messages: list[bytes], shape: RowShape, *, bytes_min: int) -> Iterator[ParsedRows]:
    """Yield what one parser makes of the messages, again and again: it learns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb_json, "BYTES_MIN", bytes_min)
        parser = MessageParser(shape)
        for _ in range(3):
            yield parser.parse(pa.array(messages, pa.binary()))


def check(messages: list[bytes], shape: RowShape = SHAPE) -> None:
    with_it = parsed(messages, shape, bytes_min=0)
    without = parsed(messages, shape, bytes_min=1 << 40)
    for found, wanted in zip(with_it, without, strict=True):
        assert found.bad == wanted.bad
        found.rows.validate(full=True)
        assert found.rows.schema.equals(wanted.rows.schema)
        assert found.rows.equals(wanted.rows), (messages, found.rows.to_pylist())


def read(lines: list[bytes], reader: DuckdbJson | None = None) -> pa.Table | None:
    text = pa.py_buffer(b"\n".join(lines))
    return (reader or DuckdbJson(dict(FIELDS))).read(text, READ_AS, max(map(len, lines)))


space = st.sampled_from([b"", b" ", b"\t", b"  "])
pair = st.one_of(
    st.tuples(st.sampled_from([*NAMES, b"t\\u0065xt"]), st.sampled_from([*VALUES, *NO_NUMBERS])),
    st.tuples(st.sampled_from(OTHERS), st.sampled_from(VALUES)),
)
line = st.builds(
    lambda pairs, gap, end: (
        b"{%s%s%s}"
        % (
            gap,
            (b"," + gap).join(b'"%s"%s:%s%s' % (name, gap, gap, value) for name, value in pairs),
            end,
        )
    ),
    st.lists(pair, max_size=4),
    space,
    st.sampled_from([b"", b"", b"", b" ", b",", b", ", b"\r"]),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(line, min_size=1, max_size=5))
@example([b'{"text":5,"whole":"5"}'])
@example([b'{"text":"x","whole":"5"}', b'{"text":5,"whole":1}'])
@example([b'{"text":5}', b'{"whole":"\\u0035"}'])
@example([b'{"text":"\\u0035"}', b'{"whole":"5"}'])
@example([b'{":k":null,"whole":"2013"}'])
@example([b'{"whole":1.5}', b'{"whole":9007199254740993}'])
@example([b'{"at":true,"whole":true,"real":true}'])
@example([b'{"text":"12"}', b'{"text":12}'])
def test_rows_and_errors_are_the_same_with_and_without_it(messages: list[bytes]) -> None:
    check(messages, RowShape(FIELDS))
    check([b'{"at":%s,%s' % (TIME, one[1:]) if b":" in one else one for one in messages])
    numbered = RowShape(FIELDS, TimeField("whole", TimeFormat.MILLIS))
    check(messages, RowShape(FIELDS[:1], numbered.time))


def test_clean_lines_are_read() -> None:
    found = read([CLEAN, b'{"text": null, "whole": -3 }', b"{}"])
    assert found is not None
    assert found.to_pylist() == [
        {"text": "a", "whole": 1, "real": 1.5, "flag": True},
        {"text": None, "whole": -3, "real": None, "flag": None},
        {"text": None, "whole": None, "real": None, "flag": None},
    ]


@pytest.mark.parametrize(
    ("text", "whole"),
    [("0815", 1), ("true", 1), ("[]", 1), ("a", 1 << 62), ("17", -(1 << 60))],
)
def test_columns_that_take_another_form_are_read_from_then_on(text: str, whole: int) -> None:
    lines = [orjson.dumps({"text": text, "whole": whole, "real": 0.5, "flag": False})] * 2
    reader = DuckdbJson(dict(FIELDS))
    tries = [read(lines, reader) for _ in range(3)]
    assert tries[0] is None
    assert tries[2] is not None
    assert tries[2].to_pylist() == [orjson.loads(lines[0])] * 2


def test_texts_that_no_column_reads_do_not_prevent_the_proof() -> None:
    reader = DuckdbJson(dict(FIELDS))
    lines = [b'{"text":"a","id":"%d","Id":"5","seen":"2013-01-01"}' % number for number in range(9)]
    found = [read(lines, reader) is not None for _ in range(4)]
    assert found[0] is False
    assert found[-1] is False  # "Id" differs from "id" only in case, which DuckDB's names cannot
    others = [line.replace(b"Id", b"no") for line in lines]
    tables = [read(others, reader) for _ in range(40)]
    assert tables[-1] is not None
    assert tables[-1].column_names == list(READ_AS)


@pytest.mark.parametrize(
    "wrong",
    [
        *(b'{"whole":"5"}', b'{"whole":1.5}', b'{"text":{"a":1}}', b'{"text":5}', b'{"real":"1"}'),
        *(
            b'{"whole":1,}',
            b'{"x":[1 , ]}',
            b'{"whole":1,"whole":2}',
            b'{"x":"\xff"}',
            b'{"flag":1}',
        ),
        *(
            b'{"text":"a"}{"text":"b"}',
            b'{"whole":9223372036854775808}',
            b'{"text":"a\x00"}',
            b'{"flag":1}',
        ),
    ],
)
def test_without_a_proof_there_is_no_result(wrong: bytes) -> None:
    assert read([CLEAN, wrong]) is None


def test_if_duckdb_cannot_start_arrow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object, **_more: object) -> None:
        raise duckdb.OutOfMemoryException("no memory")

    monkeypatch.setattr(duckdb_json, "_ENGINES", threading.local())
    monkeypatch.setattr(duckdb, "connect", fail)
    assert read([CLEAN]) is None


def test_long_lines_and_short_texts_are_left_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    long = b'{"text":"%s"}' % (b"a" * duckdb_json.ROW_BYTES_MAX)
    assert read([long]) is None
    monkeypatch.setattr(duckdb_json, "BYTES_MIN", len(CLEAN) + 1)
    assert read([CLEAN]) is None


def test_after_lines_without_a_result_as_many_texts_are_left_out() -> None:
    reader = DuckdbJson(dict(FIELDS))
    found = [read([wrong], reader) is not None for wrong in [b'{"whole":"5"}', *[CLEAN] * 3]]
    assert found == [False, False, True, True]

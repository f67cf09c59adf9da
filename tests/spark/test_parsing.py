"""Batches parse as their messages do one by one, and nothing is lost, whatever the JSON."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.instants import parse_time
from penstock.spark.topic import parse as parse_module
from penstock.spark.topic.coerce import UnparseableError, row_of
from penstock.spark.topic.parse import LEAF_MESSAGES, MessageParser, ParsedRows
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField, TimeFormat

FIELDS = (
    ("text", FieldType.STRING),
    ("whole", FieldType.LONG),
    ("real", FieldType.DOUBLE),
    ("short", FieldType.FLOAT),
    ("flag", FieldType.BOOLEAN),
)
SHAPE = RowShape(FIELDS, TimeField("at"))
GOOD = b'{"at":"2013-01-01T10:00:00Z","text":"a","whole":1,"real":1.5,"short":2.5,"flag":true}'


def parse(messages: list[bytes], shape: RowShape = SHAPE) -> ParsedRows:
    return MessageParser(shape).parse(pa.array(messages, pa.binary()))


def expected(messages: list[bytes], shape: RowShape) -> tuple[list[list[object]], list[int]]:
    rows: list[list[object]] = []
    bad = []
    for index, message in enumerate(messages):
        try:
            rows.append(list(row_of(message, shape)))
        except UnparseableError:
            bad.append(index)
    return rows, bad


def same(found: object, wanted: object, column: pa.DataType) -> bool:
    if wanted is None or found is None:
        return wanted is found
    if pa.types.is_timestamp(column):
        assert isinstance(found, int)
        return found == wanted
    if column == pa.float32():
        assert isinstance(wanted, float)
        assert isinstance(found, float)
        return found == pa.scalar(wanted, pa.float64()).cast(pa.float32(), safe=False).as_py()
    return found == wanted and type(found) is type(wanted)


def check(messages: list[bytes], shape: RowShape = SHAPE) -> ParsedRows:
    parsed = parse(messages, shape)
    rows, bad = expected(messages, shape)
    assert [b.index for b in parsed.bad] == bad
    assert all(b.reason for b in parsed.bad)
    assert parsed.rows.num_rows == len(rows)
    assert parsed.rows.schema.equals(shape.arrow_schema)
    parsed.rows.validate(full=True)
    for at, column in enumerate(parsed.rows.columns):
        values = (
            [v // 1000 for v in column.cast(pa.int64()).to_pylist()]
            if pa.types.is_timestamp(column.type)
            else column.to_pylist()
        )
        for index, value in enumerate(values):
            assert same(value, rows[index][at], column.type), (messages, at, value, rows[index])
    return parsed


def test_a_clean_batch_becomes_typed_rows() -> None:
    parsed = check([GOOD] * 3)
    assert parsed.rows.to_pylist()[0] == {
        "__time": dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC),
        "text": "a",
        "whole": 1,
        "real": 1.5,
        "short": 2.5,
        "flag": True,
    }


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not JSON"),
        (b"   ", "not JSON"),
        (b"{", "not JSON"),
        (b"nonsense", "not JSON"),
        (b"null", "not a JSON object but null"),
        (b"true", "not a JSON object but a boolean"),
        (b"[1,2]", "not a JSON object but a list"),
        (b"17", "not a JSON object but a number"),
        (b'"text"', "not a JSON object but a string"),
        (b'{"at":1}{"at":2}', "not JSON"),
        (b'{"at":1}\n{"at":2}', "not JSON"),
        (b'{"at":1}null{"at":2}', "not JSON"),
        (b'{"at":1}\x00}', "not JSON"),
        (b'{"at":1,"text":"\xff"}', "not JSON"),
        (b'{"at":1,"text":"\\ud800"}', "not JSON"),
        (b'{"at":1,"text":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "not JSON"),
        (b'{"at":1,"real":NaN}', "not JSON"),
        (b'{"at":1,"whole":"abc"}', "field 'whole': \"abc\" is not a long"),
        (b'{"at":1,"whole":1.5}', "field 'whole': 1.5 is not a long"),
        (b'{"at":1,"whole":9223372036854775808}', "field 'whole'"),
        (b'{"at":1,"whole":{"a":1}}', "field 'whole'"),
        (b'{"at":1,"whole":"0x1F"}', "field 'whole'"),
        (b'{"at":1,"real":"1e999"}', "field 'real'"),
        (b'{"at":1,"flag":2}', "field 'flag'"),
        (b'{"text":"a"}', "no time"),
        (b'{"at":null}', "no time"),
        (b'{"at":"yesterday"}', "; for another format, set timestampSpec.format"),
        (b'{"at":"0000-01-01T00:00:00Z"}', "time in field 'at'"),
        (b'{"at":"2013-02-30T00:00:00Z"}', "time in field 'at'"),
        (b'{"at":999999999999999999}', "outside the years 0001 to 9999"),
        (b'{"at":"2013-01-01T00:00:00+24:00"}', "invalid time zone: offsets end at +23:59"),
        (b'{"at":"2013-01-01T00:00:00[Mars/Phobos]"}', "not an ISO 8601 time"),
        (b'{"at":"2013-01-01 00:00:00 Mars/Phobos"}', "not an ISO 8601 time"),
        (b'{"at":"0001-01-01T00:00:00+05:00"}', "outside the years 0001 to 9999"),
        (b'{"at":"9999-12-31T23:00:00-05:00"}', "outside the years 0001 to 9999"),
        (b'{"at":true}', "time in field 'at'"),
        (b'{"at":[1]}', "time in field 'at'"),
        # What Python's own readers and writers refuse in ways of their own.
        (b'{"at":1,"whole":"' + b"9" * 5_000 + b'"}', "field 'whole'"),
        (b'{"at":"' + b"9" * 5_000 + b'"}', "time in field 'at'"),
        (b'{"at":1,"text":' + b"[" * 300 + b"]" * 300 + b"}", "field 'text'"),
        (b'{"at":1,"whole":' + b"[" * 300 + b"]" * 300 + b"}", "nested too deep"),
        (b'{"at":' + b"[" * 300 + b"]" * 300 + b"}", "time in field 'at'"),
    ],
)
def test_a_bad_message_is_named_and_its_neighbours_are_rows(message: bytes, reason: str) -> None:
    for messages in ([message], [GOOD, message, GOOD], [GOOD] * 300 + [message] + [GOOD] * 300):
        parsed = check(messages)
        assert [b.index for b in parsed.bad] == [messages.index(message)]
        assert reason in parsed.bad[0].reason
        assert parsed.rows.num_rows == len(messages) - 1


@pytest.mark.parametrize(
    ("message", "column", "value"),
    [
        (b'{"at":1,"text":17}', "text", "17"),
        (b'{"at":1,"text":1.50}', "text", "1.5"),
        (b'{"at":1,"text":false}', "text", "false"),
        (b'{"at":1,"text":{"a":[1, null]}}', "text", '{"a":[1,null]}'),
        (b'{"at":1,"text":""}', "text", ""),
        (b'{"at":1,"text":"\\u00e9\\ud83d\\ude00"}', "text", "é😀"),
        (b'{"at":1,"text":"\\u0000"}', "text", "\0"),
        (b'{"at":1,"text":"a","text":"b"}', "text", "b"),
        (b'{"at":1,"whole":"17"}', "whole", 17),
        (b'{"at":1,"whole":"17.0"}', "whole", 17),
        (b'{"at":1,"whole":17.0}', "whole", 17),
        (b'{"at":1,"whole":1e3}', "whole", 1000),
        (b'{"at":1,"whole":true}', "whole", 1),
        (b'{"at":1,"whole":""}', "whole", None),
        (b'{"at":1,"whole":-9223372036854775808}', "whole", -(2**63)),
        (b'{"at":1,"real":3}', "real", 3.0),
        (b'{"at":1,"real":"3.25"}', "real", 3.25),
        (b'{"at":1,"real":123456789012345678901234567890}', "real", 1.2345678901234568e29),
        (b'{"at":1,"flag":"TRUE"}', "flag", True),
        (b'{\n  "at": 1,\n  "whole": 2\n}', "whole", 2),
        (b' {"at":1,"whole":2} ', "whole", 2),
        (b'{"at":1,"other":{"deep":[{"er":1}]},"whole":3}', "whole", 3),
    ],
)
def test_values_are_coerced(message: bytes, column: str, value: object) -> None:
    for messages in ([message], [message, GOOD]):
        assert check(messages).rows.column(column)[0].as_py() == value


@pytest.mark.parametrize(
    ("format_", "value", "time"),
    [
        (TimeFormat.ISO, "2013-01-01", "2013-01-01"),
        (TimeFormat.ISO, "2013-01-01T10:00:00.123456Z", "2013-01-01T10:00:00.123Z"),
        (TimeFormat.ISO, "1960-01-01T00:00:00.0009Z", "1960-01-01T00:00:00.000Z"),
        (TimeFormat.ISO, "2013-01-01T10:00:00+01:00", "2013-01-01T09:00:00Z"),
        (TimeFormat.ISO, "2013", "2013-01-01"),
        (TimeFormat.ISO, "0001-01-01T00:00:00Z", "0001-01-01"),
        (TimeFormat.ISO, "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        (TimeFormat.ISO, "0000-12-31T19:00:00-05:00", "0001-01-01"),
        (TimeFormat.ISO, "2013-01-01T10:00:00-23:59", "2013-01-02T09:59:00Z"),
        (TimeFormat.AUTO, "2013-01-01T10:00:00Z", "2013-01-01T10:00:00Z"),
        (TimeFormat.AUTO, 1357034400123, "2013-01-01T10:00:00.123Z"),
        (TimeFormat.AUTO, "1357034400123", "2013-01-01T10:00:00.123Z"),
        (TimeFormat.POSIX, 1357034400, "2013-01-01T10:00:00Z"),
        (TimeFormat.POSIX, 1357034400.5, "2013-01-01T10:00:00.500Z"),
        (TimeFormat.POSIX, "1357034400", "2013-01-01T10:00:00Z"),
        (TimeFormat.MILLIS, -1, "1969-12-31T23:59:59.999Z"),
        (TimeFormat.MICRO, 1357034400123999, "2013-01-01T10:00:00.123Z"),
        (TimeFormat.MICRO, -1, "1969-12-31T23:59:59.999Z"),
        (TimeFormat.NANO, 1357034400123999999, "2013-01-01T10:00:00.123Z"),
    ],
)
def test_times(format_: TimeFormat, value: object, time: str) -> None:
    shape = RowShape((), TimeField("at", format_))
    parsed = check([orjson.dumps({"at": value})] * 2, shape)
    assert not parsed.bad
    assert parsed.rows.column("__time").cast(pa.int64())[0].as_py() == parse_time(time) * 1000


_iso_times = st.builds(
    "{}-{}{}{}{}{}".format,
    st.sampled_from(["0000", "0001", "1969", "2013", "9999", "10000", "-001"]),
    st.sampled_from(["01-01", "12-31", "02-29", "02-30", "00-01", "1-1"]),
    st.sampled_from(["T", " ", "t", "_"]),
    st.sampled_from(["00:00:00", "23:59:59", "24:00:00", "23:59:60", "00:60", "2359", "5:00"]),
    st.sampled_from(["", ".5", ".123456789", ",5", ".", ".1234567890"]),
    st.sampled_from(
        [
            *("", "Z", "z", "+05:30", "-0500", "-05", "+18:59", "-23:59", "+23:59", "+24:00"),
            *("+05:60", "+5", " Z", "UTC", "[Mars/Phobos]", "-05:00:00"),
        ]
    ),
)


@settings(max_examples=300)
@given(_iso_times)
@example("2013-01-01T00:00:00+19:00")
@example("0000-12-31T23:00:00-05:00")
def test_a_time_is_one_or_none_alone_and_beside_a_bad_one(text: str) -> None:
    # Alone Arrow reads it as a column; beside a bad one it is read by itself.
    message = orjson.dumps({"at": text})
    check([message])
    check([message, b'{"at":"soon"}'])


def test_a_time_that_overflows_is_a_bad_message() -> None:
    shape = RowShape((), TimeField("at", TimeFormat.POSIX))
    parsed = check([b'{"at":1e306}', b'{"at":1}'], shape)
    assert [bad.index for bad in parsed.bad] == [0]
    assert parsed.rows.num_rows == 1


def test_a_missing_time_is_replaced_if_the_spec_says_so() -> None:
    shape = RowShape((), TimeField("at", TimeFormat.ISO, parse_time("2000-01-01")))
    parsed = check([b"{}", b'{"at":null}', b'{"at":"2013-01-01T00:00:00Z"}'], shape)
    assert [t.year for t in parsed.rows.column("__time").to_pylist()] == [2000, 2000, 2013]


def test_the_time_field_may_be_a_column_too() -> None:
    shape = RowShape((("at", FieldType.STRING),), TimeField("at", TimeFormat.ISO))
    parsed = check([b'{"at":"2013-01-01T10:00:00Z"}', b'{"at":"2013-01-02"}'], shape)
    assert parsed.rows.column("at").to_pylist() == ["2013-01-01T10:00:00Z", "2013-01-02"]


def test_a_message_of_two_megabytes() -> None:
    text = "x" * (2 << 20)
    parsed = check([GOOD, orjson.dumps({"at": 1, "text": text}), GOOD])
    assert parsed.rows.column("text")[1].as_py() == text


def test_values_written_another_way_do_not_cost_the_next_batches_their_speed() -> None:
    parser = MessageParser(SHAPE)
    for values in (("1", 2.5), (1, "2.5"), ("1", "2.5"), (1, 2)):
        message = orjson.dumps({"at": 1, "whole": values[0], "real": values[1]})
        parsed = parser.parse(pa.array([message] * 5, pa.binary()))
        assert parsed.rows.column("whole").to_pylist() == [1] * 5
        assert parsed.rows.column("real").to_pylist() == [float(values[1])] * 5


def test_a_slice_of_a_batch_is_parsed_as_such() -> None:
    messages = pa.array([b"bad", GOOD, b"[]", GOOD, b"bad"], pa.binary())
    parsed = MessageParser(SHAPE).parse(messages.slice(1, 3))
    assert [b.index for b in parsed.bad] == [1]
    assert parsed.rows.num_rows == 2


def test_no_messages_make_no_rows() -> None:
    assert check([]).rows.num_rows == 0


def test_a_shape_has_each_field_once() -> None:
    with pytest.raises(InvalidRequest, match="listed twice"):
        RowShape((("a", FieldType.LONG), ("a", FieldType.STRING)))


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["", "1", "-7", "1.5", "1e3", "007", "+1", "true", "2013-01-01T00:00:00Z"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "text"]), inner, max_size=2)
    ),
    max_leaves=4,
)
times = st.sampled_from(
    ["2013-01-01T10:00:00Z", "2013-01-01", "2013-01-01 10:00:00.5", 0, 1357034400000, "5", -1]
)
objects = st.fixed_dictionaries(
    {}, optional={"at": times | leaves, "extra": values} | {name: values for name, _ in FIELDS}
)
typical = st.fixed_dictionaries(
    {"at": times},
    optional={
        "text": st.none() | st.text(max_size=6),
        "whole": st.none() | st.integers(-5, 5) | st.integers(-5, 5).map(str),
        "real": st.none() | st.floats(-5, 5) | st.integers(-5, 5),
        "short": st.floats(-5, 5, width=32),
        "flag": st.booleans(),
    },
)
as_json = st.one_of(
    typical.map(orjson.dumps),
    objects.map(orjson.dumps),
    objects.map(lambda o: orjson.dumps(o, option=orjson.OPT_INDENT_2)),
)
broken = st.sampled_from(
    [b"", b" ", b"{", b"}", b"{}", b"{}{}", b"null", b"{}null{}", b"[]", b'{"at":', b'"}', b"{}\n"]
) | st.binary(max_size=8)


@settings(max_examples=50)
@given(st.lists(st.one_of(as_json, as_json, broken), max_size=12), st.integers(0, 2))
@example([b'{"at":1}{"at":2}', b"{}"], 0)
@example([b'{"at":1', b"}"], 0)
@example([b'{"x":"}', b'{"x":","at":1}'], 0)
@example([b'{"at":0,"whole":"1"}', b'{"at":0,"whole":1}'], 0)
def test_a_batch_is_the_sum_of_its_messages(messages: list[bytes], copies: int) -> None:
    # Fields that are not read are not held to UTF-8 in a batch: leave those messages out.
    messages = [m for m in messages if _is_text(m) or not m.startswith(b"{")]
    check(messages)
    # Long enough to be cut into smaller batches, with the odd ones spread over them.
    check(messages + [GOOD] * LEAF_MESSAGES * copies + messages)


def _is_text(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_comes_back(value: float) -> None:
    shape = RowShape((("real", FieldType.DOUBLE),))
    found = check([orjson.dumps({"real": value})], shape).rows.column("real")[0].as_py()
    assert math.copysign(1, found) == math.copysign(1, value)


LISTS = RowShape((("s", FieldType.STRINGS), ("n", FieldType.LONGS), ("d", FieldType.DOUBLES)))
_ELEMENTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.sampled_from(["", "a", "7", "é"]),
)
_LISTED = st.one_of(_ELEMENTS, st.lists(_ELEMENTS, max_size=3), st.just([[1]]))


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys("snd", _LISTED)), max_size=8))
@example([{"s": ["a", None], "n": [1], "d": [1.5, 2]}, {"s": [], "n": None}])
def test_lists_in_batches_are_those_of_their_messages(objects: list[dict[str, object]]) -> None:
    messages = [orjson.dumps(one) for one in objects]
    parsed = parse(messages, LISTS)
    rows, bad = expected(messages, LISTS)
    assert [one.index for one in parsed.bad] == bad
    assert [list(row.values()) for row in parsed.rows.to_pylist()] == rows


@pytest.mark.parametrize(
    "message", [b'{"s":["\xff"]}', b'{"d":[NaN]}', b'{"n":[9223372036854775808]}']
)
def test_a_value_of_a_list_that_is_none_costs_its_message_alone(message: bytes) -> None:
    parsed = parse([b'{"s":["a"]}', message, b'{"s":["b"]}'], LISTS)
    assert [one.index for one in parsed.bad] == [1]
    assert parsed.rows.column(0).to_pylist() == [["a"], ["b"]]


def test_many_messages_of_which_none_parses() -> None:
    parser = MessageParser(RowShape((("a", FieldType.LONG),)))
    parsed = parser.parse(pa.array([b"x"] * 1_000))
    assert (parsed.rows.num_rows, len(parsed.bad)) == (0, 1_000)
    lines = pa.py_buffer(b"x\n" * 1_000)
    starts = np.arange(0, 2_000, 2)
    parsed = MessageParser(RowShape((("a", FieldType.LONG),))).parse_lines(
        lines, starts, starts + 1
    )
    assert (parsed.rows.num_rows, len(parsed.bad)) == (0, 1_000)


def test_messages_of_many_columns_are_parsed_some_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parse_module, "CELLS_MAX", 2 << 20)
    fields = tuple((f"c{number}", FieldType.STRING) for number in range(9_999))
    parser = MessageParser(RowShape(fields))
    parsed = parser.parse(pa.array([b"{}"] * 500 + [b'{"c7":"x"}'] + [b"{"]))
    assert parsed.rows.num_rows == 501
    assert parsed.rows.column(7)[500].as_py() == "x"
    assert [bad.index for bad in parsed.bad] == [501]


def wide(kinds: list[bytes], fields: int = 1_000) -> list[bytes]:
    """Return a message for each kind of value, with as many fields of that kind."""
    return [
        b'{"at":1,' + b",".join(b'"f%d":%s' % (field, kind) for field in range(fields)) + b"}"
        for kind in kinds
    ]


def reads_of(messages: list[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[ParsedRows, int]:
    shape = RowShape(
        tuple((f"f{number}", FieldType.DOUBLE) for number in range(1_000)), TimeField("at")
    )
    reads = []
    real = parse_module._read

    def counted(text: pa.Buffer, reading: dict[str, pa.DataType]) -> pa.Table:
        reads.append(text.size)
        return real(text, reading)

    monkeypatch.setattr(parse_module, "_read", counted)
    return parse(messages, shape), len(reads)


def test_many_fields_that_are_written_otherwise_cost_few_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, reads = reads_of(wide([b'"1.5"'] * 2), monkeypatch)
    assert reads <= 4
    assert parsed.rows.column(1_000).to_pylist() == [1.5, 1.5]
    assert not parsed.bad


def test_fields_that_differ_one_after_the_other_cost_a_bounded_number_of_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first messages, which determine how all fields are written, have none of them."""
    messages = [b'{"at":1}'] * LEAF_MESSAGES + wide([b'"1.5"'] * 2)
    parsed, reads = reads_of(messages, monkeypatch)
    assert reads <= 3 * 8
    assert parsed.rows.column(1_000).to_pylist() == [None] * LEAF_MESSAGES + [1.5, 1.5]


@pytest.mark.parametrize(
    ("before", "after"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]}\\"\\\\":', b"}]")]
)
@pytest.mark.parametrize("levels", [1_022, 1_023, 1_024, 1_026, 2_000])
def test_a_message_that_nests_deeply_has_one_fate_alone_and_beside_a_bad_one(
    before: bytes, after: bytes, levels: int
) -> None:
    """In a field that no column has, Arrow reads any nesting, and orjson 1,024 levels."""
    times = levels // (before.count(b"[") + before.count(b'{"'))
    deep = b'{"text":"d","x":' + before * times + b"1" + after * times + b"}"
    shape = RowShape((("text", FieldType.STRING),), None)
    alone = check([deep], shape)
    assert [bad.index for bad in alone.bad] == [0] * (levels > 1_023)
    for other in (b'{"text":"1"}', b'{"text":'):
        beside = check([other, deep, GOOD], shape)
        assert [bad.reason for bad in beside.bad if bad.index == 1] == [
            bad.reason for bad in alone.bad
        ]
    sliced = pa.array([GOOD, deep, GOOD], pa.binary()).slice(1)
    assert len(MessageParser(shape).parse(sliced).bad) == len(alone.bad)


def test_a_message_of_many_small_arrays_is_not_parsed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = b'{"text":"[","x":[' + b",".join([b"[1]"] * 3_000) + b"]}"
    monkeypatch.setattr(MessageParser, "_one_by_one", None)
    parsed = parse([wide, GOOD] * 100, RowShape((("text", FieldType.STRING),), None))
    assert parsed.rows.column(0).to_pylist() == ["[", "a"] * 100

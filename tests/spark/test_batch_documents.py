"""JSON that is not one object a line: objects are found in any form, at their lines. No JVM."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.batch.input.documents import (
    HEAD_BYTES,
    BraceScan,
    is_lines,
    may_be_cut,
    read_text,
)
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.topic.row_shape import RowShape

TEXT = st.text(alphabet='ab"\\{}[],\n é', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), min_size=1, max_size=8)
SOURCE = Source("json", RowShape(()))


def read(
    path: Path, block_bytes: int = 1 << 16, source: Source = SOURCE, most: int = 1 << 20
) -> list[tuple[int, bytes]]:
    split = Split(InputFile(str(path), path.name, path.stat().st_size, 0))
    found = []
    for lines in read_text(split, source, line_bytes_max=most, block_bytes=block_bytes):
        text = bytes(memoryview(lines.text))
        for number, start, end in zip(lines.numbers, lines.starts, lines.ends, strict=True):
            found.append((int(number), text[start:end]))
    return found


def ways(objects: list[dict[str, object]]) -> dict[str, str]:
    return {
        "list": json.dumps(objects),
        "pretty list": json.dumps(objects, indent=1),
        "pretty": "\n".join(json.dumps(one, indent=2) for one in objects),
        "together": "".join(json.dumps(one) for one in objects),
        "lines": "\n".join(json.dumps(one) for one in objects),
        "list of lines": "[\r\n" + ",\r\n".join(json.dumps(one) for one in objects) + "\r\n]\r\n",
    }


@given(objects=OBJECTS, block_bytes=st.integers(1, 64))
@pytest.mark.parametrize("way", sorted(ways([])))
def test_objects_are_found_however_they_are_written(
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
    objects: list[dict[str, object]],
    block_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("documents") / "rows.json"
    path.write_text(ways(objects)[way])
    assert [orjson.loads(row) for _, row in read(path, block_bytes)] == objects


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a":1}\n{"a":2}', [(0, '{"a":1}'), (1, '{"a":2}')]),
        ('{"a":1} {"a":2}\n{"a":3}', [(0, '{"a":1}'), (0, '{"a":2}'), (1, '{"a":3}')]),
        ('\n[\n{\n"a":1}\n, 7,\n{"b"\n:2}]', [(2, '{\n"a":1}'), (4, "7"), (5, '{"b"\n:2}')]),
        ('[{"a":1}, {"a":\n{"b":', [(0, '{"a":1}'), (0, '{"a":\n{"b":')]),
        ('[{"a":1}}, {"b":2}]', [(0, '{"a":1}'), (0, "}"), (0, '{"b":2}')]),
        ('[{"a":"}"},\n "x y', [(0, '{"a":"}"}'), (1, '"x y')]),
        ('{"a":\n{"b":1}\n', [(0, '{"a":'), (1, '{"b":1}')]),
        ('{bad\n{"a":1}', [(0, "{bad"), (1, '{"a":1}')]),
        ('\ufeff{\n"a":1}', [(0, '{\n"a":1}')]),
        ("words\nand more", [(0, "words"), (1, "and more")]),
        (" \n ", [(0, " "), (1, " ")]),
        ("[]", []),
    ],
)
def test_what_is_between_objects_is_a_row_and_places_are_lines(
    tmp_path: Path, text: str, wanted: list[tuple[int, str]]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    assert [(number, row.decode()) for number, row in read(path)] == wanted


def test_an_object_without_end_is_one_row_of_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"a":1},\n{"b":"' + "x" * 100 + '"},{"c":1}]')
    found = read(path, block_bytes=8, most=50)
    assert found[0] == (0, b'{"a":1}')
    assert len(found) == 2 or found[1][0] == 1


def test_packed_and_large_files_and_those_said_to_be_lines(tmp_path: Path) -> None:
    pretty = json.dumps([{"a": n} for n in range(9)], indent=1).encode()
    packed = tmp_path / "rows.json.gz"
    packed.write_bytes(pa.compress(pretty, codec="gzip", asbytes=True))
    file = InputFile(str(packed), "rows", 1, 0, codec="gzip")
    (lines,) = read_text(Split(file), SOURCE, line_bytes_max=1000)
    assert len(lines.starts) == 9
    plain = tmp_path / "rows.json"
    plain.write_bytes(pretty)
    file = InputFile(str(plain), "rows", len(pretty), 0)
    assert not may_be_cut(file, SOURCE)
    only = Source("json", RowShape(()), lines_only=True)
    assert may_be_cut(file, only)
    assert len(read(plain, source=only)) == pretty.count(b"\n") + 1
    assert is_lines(b'{"a":"' + b"x" * HEAD_BYTES)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b'{"a":1}\n[{"b":\n', True),
        (b'\xef\xbb\xbf\n {"a":"}"} \r\n{"b"', True),
        (b'{"a":1}', True),
        (b'{}\n{"a":1}\n', True),
        (b'{}\n{"a":\n1}', False),
        (b'{"a":1} {"b":2}\n', False),
        (b'{ }\n{"a":\n1}', True),
        (b'{"a":\n1}', False),
    ],
)
def test_the_first_object_that_tells_decides_what_a_file_is(text: bytes, wanted: bool) -> None:
    assert is_lines(text) is wanted


@given(st.lists(st.sampled_from([b"{", b"}", b'"', b"\\", b"a", b" "]), max_size=60))
def test_braces_are_paired_alike_whatever_the_pieces(parts: list[bytes]) -> None:
    text = np.frombuffer(b"".join(parts), np.uint8)
    whole = BraceScan()
    whole.feed(text, 0)
    for size in (1, 2, 7):
        scan = BraceScan()
        for at in range(0, len(text), size):
            scan.feed(text[at : at + size], at)
        found = scan.found(len(text))
        assert [one.tolist() for one in found[:2]] == [
            one.tolist() for one in whole.found(len(text))[:2]
        ]
        assert found[2] == whole.found(len(text))[2]

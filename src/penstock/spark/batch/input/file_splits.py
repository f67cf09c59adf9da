"""Division of the files of an input into splits. Plain data that is sent to workers.

Invariants: every byte of a text file, or every row group of a columnar one, is in exactly one
split; a line belongs to the split that contains its first byte; files of compressed text, Avro, or
JSON other than one object a line are never divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from penstock.core.read_guard import ReadGuard
from penstock.spark.topic.row_shape import RowShape

Kind = Literal["json", "delimited", "parquet", "orc", "avro"]

StoreOptions: TypeAlias = tuple[tuple[str, str], ...]
"""Options of fsspec for an object store, by name; their values are secret."""

# Weight of a compressed byte relative to an uncompressed one.
_PACKED: Final = 5


@dataclass(frozen=True, slots=True)
class Source:
    """Common format of some files, and the rows made from them.

    `columns` are the names of delimited text, empty if each file has a header; `skip` counts the
    lines before the rows; `header` is set if the last of them has the names. With `lines_only`,
    JSON is read as one object a line, and no other form is detected.
    """

    kind: Kind
    shape: RowShape
    columns: tuple[str, ...] = ()
    separator: str = ","
    list_delimiter: str | None = None
    skip: int = 0
    header: bool = False
    binary_as_string: bool = False
    lines_only: bool = False


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read: path or URL, name for messages, size in bytes, and compression.

    With a `clip`, only rows of the time [`clip[0]`, `clip[1]`) are visible. `renamed` are pairs
    of a column's name and the name under which it is read. The `guard` of a file that a spec or a
    statement names refuses Penstock's own files; other files are chosen by Penstock. `store` has
    the options of fsspec for the file's store, which are secret.
    """

    path: str
    shown: str
    size: int
    source: int
    codec: str | None = None
    columns: tuple[str, ...] = ()
    clip: tuple[int, int] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    guard: ReadGuard | None = None
    store: StoreOptions = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes [start, end) of a text file, or row groups of a columnar one; end -1: end of file."""

    file: InputFile
    start: int = 0
    end: int = -1


Piece = tuple[Split, ...]


def cut(
    files: Sequence[InputFile],
    sources: Sequence[Source],
    *,
    parallelism: int,
    least: int,
    most: int,
    groups_of: Callable[[InputFile, Source], int],
    may_be_cut: Callable[[InputFile, Source], bool] = lambda _file, _source: True,
) -> tuple[Piece, ...]:
    """Return pieces of about equal weight, at least `parallelism` if there is enough to read.

    Args:
        files: The files to read.
        sources: The sources to which the files' `source` numbers refer.
        parallelism: Desired number of pieces.
        least: Minimum size of a split, in bytes.
        most: Maximum size of a piece, in bytes, if files can be divided.
        groups_of: Returns the number of row groups of a columnar file; called only for large ones.
        may_be_cut: Returns whether a text file may be read in parts; called only for large ones.
    """
    total = sum(map(_weight, files))
    size = min(max(-(-total // max(parallelism, 1)), least), most)
    pieces: list[Piece] = []
    gathered: list[Split] = []
    weight = 0
    for split, load in _splits(files, sources, size, groups_of, may_be_cut):
        if gathered and weight + load > size * 1.1:
            pieces.append(tuple(gathered))
            gathered, weight = [], 0
        gathered.append(split)
        weight += load
    if gathered:
        pieces.append(tuple(gathered))
    return tuple(pieces)


def _splits(
    files: Iterable[InputFile],
    sources: Sequence[Source],
    size: int,
    groups_of: Callable[[InputFile, Source], int],
    may_be_cut: Callable[[InputFile, Source], bool],
) -> Iterable[tuple[Split, int]]:
    for file in files:
        parts = -(-file.size // size)
        source = sources[file.source]
        if parts <= 1 or file.codec is not None or source.kind == "avro":
            yield Split(file), _weight(file)
            continue
        units = file.size
        if source.kind in {"parquet", "orc"}:
            units = groups_of(file, source)
            parts = max(1, min(parts, units))
        elif not may_be_cut(file, source):
            yield Split(file), _weight(file)
            continue
        for part in range(parts):
            ends = units * part // parts, units * (part + 1) // parts
            yield Split(file, *ends), file.size // parts


def _weight(file: InputFile) -> int:
    return max(1, file.size * (_PACKED if file.codec else 1))

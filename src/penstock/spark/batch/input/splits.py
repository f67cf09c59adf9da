"""How the files of an input are cut into pieces of work. Plain data that travels to workers.

Invariants: every byte of a text file, or every row group of a columnar one, is in exactly one
split; a line belongs to the split in which its first byte lies; compressed text is never cut, nor
is Avro, nor JSON that is not one object a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.spark.topic.rowshape import RowShape

Kind = Literal["json", "delimited", "parquet", "orc", "avro"]

# What a compressed byte weighs against a plain one.
_PACKED: Final = 5


@dataclass(frozen=True, slots=True)
class Source:
    """What some files have in common: how they are written, and what rows are made of them.

    `columns` are the names of delimited text, empty when each file has a header; `skip` counts the
    lines before the rows, `header` tells whether the last of them has the names. `lines_only`: JSON
    is one object a line, and nothing else is looked for.
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
    """A file to read: a path on this host or a URL, how messages call it, bytes, compression.

    With a `clip`, only rows of the time [`clip[0]`, `clip[1]`) are visible. `renamed` are pairs
    of a column's name and that under which it is read.
    """

    path: str
    shown: str
    size: int
    source: int
    codec: str | None = None
    columns: tuple[str, ...] = ()
    clip: tuple[int, int] | None = None
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes [start, end) of a text file, or row groups of a columnar one; end -1: to the end."""

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
    """Return pieces of about equal weight, at least `parallelism` where there is enough to read.

    Args:
        files: What to read.
        sources: What the files' `source` numbers mean.
        parallelism: How many pieces there should be.
        least: Bytes of the smallest split.
        most: Bytes of the largest piece, where files can be cut.
        groups_of: Tells how many row groups a columnar file has; asked only of large ones.
        may_be_cut: Tells whether a file of text may be read in parts; asked only of large ones.
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

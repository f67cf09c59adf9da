"""The progress of an input: sums over the reports that pieces have left."""

from __future__ import annotations

from pathlib import Path

from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.input_work import InputTally, InputWork
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField


def test_rows_count_when_a_piece_was_read_and_files_when_all_their_pieces_were(
    tmp_path: Path,
) -> None:
    files = []
    for name, rows in (("a", 3), ("b", 2)):
        path = tmp_path / f"{name}.json"
        line = '{"at": 0, "name": "x"}\n'
        path.write_text(line * rows + "no JSON\n")
        files.append(InputFile(str(path), path.name, path.stat().st_size, 0))
    first, second = files
    source = Source("json", RowShape((("name", FieldType.STRING),), TimeField("at")))
    half = len('{"at": 0, "name": "x"}\n')
    pieces = ((Split(first, 0, half),), (Split(first, half), Split(second)))
    work = InputWork(pieces, (source,), str(tmp_path / "scratch"), 3, None, 1 << 20)
    tally = InputTally(work)

    def read(number: int) -> tuple[int, int]:
        for _ in work.read(number):
            pass
        tally.update()
        return tally.rows, tally.files

    tally.update()
    assert (tally.rows, tally.files, tally.files_total) == (0, 0, 2)
    assert read(1) == (2 + 1 + 2 + 1, 1)
    assert read(1) == (2 + 1 + 2 + 1, 1), "a repeated attempt counts once"
    assert read(0) == (3 + 1 + 2 + 1, 2)
    assert tally.files_total == 2

"""The visible files of a table, made again from those of a moment before."""

from __future__ import annotations

from dataclasses import replace

from penstock.core.intervals import Interval
from penstock.services.api.published_rows import visible_files
from penstock.spark.tables.table_files import TableFile

DAY = Interval(0, 86_400_000)
MORNING, EVENING = Interval(0, 30_000_000), Interval(60_000_000, 86_400_000)


def test_records_of_files_that_did_not_change_are_taken_over() -> None:
    whole = TableFile("a", (), DAY, size_bytes=1, rows=5)
    cut = [TableFile("b", (), DAY, part, size_bytes=1, rows=6) for part in (MORNING, EVENING)]
    before = visible_files([whole, *cut])
    assert [one.visible for one in before] == [(), (MORNING, EVENING)]
    again = visible_files([cut[0], whole], before)
    assert again == visible_files([cut[0], whole])
    assert again[1] is before[0]


def test_files_that_changed_are_made_again() -> None:
    whole = TableFile("a", (), DAY, size_bytes=1, rows=5)
    cut = replace(whole, clip=MORNING)
    # A copy of a segment under another id has the file of the first one.
    copy = replace(whole, interval=MORNING)
    more = replace(whole, rows=6)
    for first in (whole, cut, copy, more):
        for then in (whole, cut, copy, more):
            assert visible_files([then], visible_files([first])) == visible_files([then])

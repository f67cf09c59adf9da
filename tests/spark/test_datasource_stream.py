"""The stream reader of `penstock` as Spark calls it: a model of random changes, and single cases.

Each file has one row in each unit of time, so its rows are known without reading it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.segments.catalog import Catalog
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, ShardSpec
from penstock.spark import datasource_changes
from penstock.spark.datasource import PenstockSource, StreamSource
from penstock.spark.datasource_changes import ChangesPage, changes_after, files_at
from penstock.spark.datasource_stream import (
    ChangedRows,
    DatasourceStreamReader,
    Replaced,
    StreamOptions,
)
from penstock.spark.tables.table_files import TableFile
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import MemoryMetadata
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table
from tests.spark.servers_kit import Served

HOURS = 6
Row = tuple[str, int]
Place = dict[str, int]
N = StructType().add("n", LongType())


class Changing:
    """A store with datasources that change, as readers of streams find it."""

    def __init__(self, store: MetadataStore, name: str = "d") -> None:
        self.store = store
        self.name = name
        self.ids: list[str] = []
        self.requests: list[tuple[int, int]] = []
        self.followed: list[tuple[str, int, int]] = []
        self._numbers: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._deep_store = DeepStore("/nowhere")

    def now(self) -> int:
        return self.store.revision()

    def files(self, revision: int) -> Sequence[TableFile]:
        return files_at(self.store, self._deep_store, self.name, revision)

    def changes(self, after: int, limit: int) -> ChangesPage:
        self.requests.append((after, limit))
        found = changes_after(self.store, self._deep_store, self.name, after, limit)
        return ChangesPage.from_json(found.to_json(self.name))

    def follow(self, cursor: str, revision: int, rows_left: int) -> None:
        self.followed.append((cursor, revision, rows_left))

    def publish(self, start: int, length: int, version: int, count: int = 1) -> set[Row]:
        """Publish segments of one time chunk in one transaction; return their rows."""
        place = (start, min(HOURS, start + length), version)
        others = [p for p in self._numbers if p[2] == version and p != place]
        if any(p[0] < place[1] and p[1] > place[0] for p in others):
            return set()  # Two time chunks of a version must not overlap.
        segments = []
        for _ in range(count):
            number = self._numbers[place]
            self._numbers[place] += 1
            interval = Interval(*place[:2])
            name = f"{self.name}/{place[0]}-{place[1]}-{version}/{number}"
            segments.append(
                Segment(
                    *(self.name, interval, f"v{version}", {"type": "deepStorage", "path": name}),
                    ShardSpec(number, 0, "numbered"),
                    size=10,
                    total_rows=7,
                )
            )
        rows = tuple(segment.to_row() for segment in segments)
        outcome = self.store.publish(
            PublishRequest("t", self.name, segments=rows, kind="insert", sequence_name="")
        )
        assert outcome.ok, outcome.reason
        self.ids += [str(segment.id) for segment in segments]
        return {
            (self._deep_store.location(one.load_spec), ms)
            for one in segments
            for ms in range(*place[:2])
        }

    def visible(self) -> set[Row]:
        pieces = Catalog().view(self.store.snapshot(self.name)).visible(self.name)
        return {
            (self._deep_store.location(piece.segment.load_spec), ms)
            for piece in pieces
            for ms in range(piece.interval.start_ms, piece.interval.end_ms)
        }

    def change(self, what: tuple[str | int, ...]) -> set[Row]:
        """Change the datasource; return the rows of segments that this published."""
        kind, *values = what
        numbers = [int(value) for value in values]
        segments = self.store.segments
        if kind == "publish":
            return self.publish(*numbers)
        if kind == "overshadowed":
            catalog = Catalog()
            snapshot = self.store.snapshot(self.name)
            catalog.view(snapshot)
            hidden = [str(one.id) for one in catalog.overshadowed()]
            segments.mark_overshadowed_unused(hidden, snapshot.revision)
        elif self.ids:
            mark = segments.mark_unused if kind == "unused" else segments.mark_used
            mark([self.ids[numbers[0] % len(self.ids)]])
        return set()


def a_reader(source: Changing, **options: str) -> DatasourceStreamReader:
    return DatasourceStreamReader(StreamOptions.of(options), N, source, lambda: None)


def rows_of(part: object) -> set[Row]:
    assert isinstance(part, ChangedRows)
    file = part.change.file
    time = file.clip or file.interval
    return {(file.path, ms) for ms in range(time.start_ms, time.end_ms)}


def read(reader: DatasourceStreamReader, start: Place, end: Place) -> list[tuple[str, Row]]:
    return [
        (part.change.kind.value, row)
        for part in reader.partitions(start, end)
        for row in sorted(rows_of(part))
        if isinstance(part, ChangedRows)
    ]


def run_available(
    reader: DatasourceStreamReader, place: Place
) -> tuple[Place, list[list[tuple[str, Row]]]]:
    """Do what Spark does with the trigger `availableNow`."""
    reader.prepareForTriggerAvailableNow()
    batches = []
    while (end := reader.latestOffset(place, reader.getDefaultReadLimit())) != place:
        batches.append(read(reader, place, end))
        assert read(reader, place, end) == batches[-1], "a repeated micro-batch is the same"
        place = end
    return place, batches


def inserted(batches: Iterable[list[tuple[str, Row]]]) -> list[Row]:
    assert all(kind == "insert" for batch in batches for kind, _ in batch)
    return [row for batch in batches for _, row in batch]


change = st.one_of(
    st.tuples(
        st.just("publish"),
        *(st.integers(0, HOURS - 1), st.integers(1, HOURS), st.integers(1, 4)),
        st.integers(1, 4),
    ),
    st.tuples(st.sampled_from(["unused", "used"]), st.integers(0, 12)),
    st.tuples(st.just("overshadowed")),
)
# A micro-batch of a query that is started again for it, with this limit; 0: none.
micro_batch = st.tuples(st.just("read"), st.integers(0, 3))
steps = st.lists(st.one_of(change, micro_batch), min_size=2, max_size=14)
shared = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def changing() -> Iterator[Changing]:
    with MemoryMetadata(VirtualClock()) as store:
        yield Changing(store)


def test_pages_that_end_after_few_segments_have_the_same_changes(
    changing: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(5):
        changing.publish(0, 4, version)
        changing.store.publish(PublishRequest("t", "other", kind="insert", sequence_name=""))
    whole = changing.changes(0, 100)
    assert not whole.more
    monkeypatch.setattr(datasource_changes, "SEGMENTS_READ_MAX", 1)
    pages = [changing.changes(0, 100)]
    while pages[-1].more:
        pages.append(changing.changes(pages[-1].next, 100))
    assert [len(page.commits) for page in pages] == [1] * 5
    assert tuple(commit for page in pages for commit in page.commits) == whole.commits


_examples = (f"d{number}" for number in range(10_000))


def take(
    source: Changing, all_steps: Sequence[tuple[str | int, ...]], replaced: str
) -> tuple[list[tuple[str, Row]], set[Row]]:
    """Return what a query has read, and the rows that were only appended."""
    place = a_reader(source, replaced=replaced).initialOffset()
    found: list[tuple[str, Row]] = []
    appended: set[Row] = set()
    for what, *values in all_steps:
        if what == "read":
            limit = int(values[0])
            reader = a_reader(source, replaced=replaced, maxFilesPerTrigger=str(limit or 1))
            wanted = reader.getDefaultReadLimit() if limit else ReadAllAvailable()
            end = reader.latestOffset(place, wanted)
            found += read(reader, place, end)
            place = end
            continue
        before = source.visible()
        published = source.change((what, *values))
        after = source.visible()
        if before <= after and after - before <= published:
            appended |= after - before
    _, batches = run_available(a_reader(source, replaced=replaced, maxFilesPerTrigger="2"), place)
    return found + [one for batch in batches for one in batch], appended


@given(steps)
@shared
def test_changes_lead_to_exactly_the_visible_rows(
    changing: Changing, all_steps: list[tuple[str | int, ...]]
) -> None:
    source = Changing(changing.store, next(_examples))
    source.publish(0, 2, 1)
    rows: Counter[Row] = Counter()
    found, _ = take(source, all_steps, "changes")
    for kind, row in found:
        rows[row] += 1 if kind == "insert" else -1
        assert rows[row] in {0, 1}, "a row appears before it goes, and not twice"
    assert set(+rows) == source.visible()


@given(steps)
@shared
def test_with_skip_each_appended_row_comes_once(
    changing: Changing, all_steps: list[tuple[str | int, ...]]
) -> None:
    source = Changing(changing.store, next(_examples))
    first = source.publish(0, 2, 1)
    found, appended = take(source, all_steps, "skip")
    assert {kind for kind, _ in found} <= {"insert"}
    assert Counter(row for _, row in found) == Counter(first | appended)


def test_a_micro_batch_has_as_many_files_as_the_limit(changing: Changing) -> None:
    rows = changing.publish(0, 2, 1, 5)
    place = a_reader(changing).initialOffset()
    rows |= changing.publish(2, 2, 1, 4)
    rows |= changing.publish(4, 2, 1, 1)
    _, batches = run_available(a_reader(changing, maxFilesPerTrigger="3"), place)
    assert [len({path for _, (path, _) in batch}) for batch in batches] == [3, 3, 3, 1]
    assert sorted(inserted(batches)) == sorted(rows)
    _, batches = run_available(a_reader(changing, maxBytesPerTrigger="45"), place)
    assert [len({path for _, (path, _) in batch}) for batch in batches] == [4, 4, 2]
    _, batches = run_available(a_reader(changing, maxBytesPerTrigger="1"), place)
    assert len(batches) == 10


def test_the_changes_of_a_large_revision_are_requested_once(changing: Changing) -> None:
    place = a_reader(changing).initialOffset()
    changing.publish(0, 2, 1, 9)
    changing.publish(2, 2, 1, 1)
    reader = a_reader(changing, maxFilesPerTrigger="2")
    batches = run_available(reader, place)[1]
    assert len(inserted(batches)) == 20
    assert len(changing.requests) < 2 * len(batches)


def test_a_run_ends_at_what_was_there(changing: Changing) -> None:
    first = changing.publish(0, 2, 1)
    reader = a_reader(changing)
    reader.prepareForTriggerAvailableNow()
    changing.publish(2, 2, 1)
    place = reader.initialOffset()
    end = reader.latestOffset(place, reader.getDefaultReadLimit())
    assert inserted([read(reader, place, end)]) == sorted(first)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    # Other datasources change the metadata, too. This query does not progress by that.
    Changing(changing.store, "others").publish(0, 1, 1)
    place, [rest] = run_available(a_reader(changing), end)
    assert len(rest) == 2
    assert run_available(a_reader(changing), place) == (place, [])


def test_the_newest_change_is_reported_beside_the_end_of_the_batch(changing: Changing) -> None:
    changing.publish(0, 2, 1)
    reader = a_reader(changing, maxFilesPerTrigger="1")
    assert reader.reportLatestOffset() is None
    place = reader.initialOffset()
    place = reader.latestOffset(place, reader.getDefaultReadLimit())
    changing.publish(2, 2, 1)
    changing.publish(4, 2, 1)
    newest = changing.store.revision()
    Changing(changing.store, "others").publish(0, 1, 1)
    end = reader.latestOffset(place, reader.getDefaultReadLimit())
    assert end == {"revision": newest - 1}
    assert reader.reportLatestOffset() == {"revision": newest}


def test_rows_that_go_end_a_query_after_those_before_are_read(changing: Changing) -> None:
    changing.publish(0, 2, 1)
    place = a_reader(changing).initialOffset()
    rows = changing.publish(2, 2, 1)
    changing.publish(0, 2, 2)
    reader = a_reader(changing)
    end = reader.latestOffset(place, reader.getDefaultReadLimit())
    assert len(inserted([read(reader, place, end)])) == len(rows) + 2
    with pytest.raises(InvalidRequest, match=r'rows of .* went at revision .*"replaced", "skip"'):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    others = a_reader(changing, interval=str(Interval(3, 6)))
    assert others.latestOffset(end, others.getDefaultReadLimit()) != end


def test_rows_that_come_back_are_no_new_ones(changing: Changing) -> None:
    changing.publish(0, 2, 1)
    place = a_reader(changing).initialOffset()
    changing.store.segments.mark_unused(changing.ids)
    gone = a_reader(changing, replaced="skip")
    place, _ = run_available(gone, place)
    changing.store.segments.mark_used(changing.ids)
    with pytest.raises(InvalidRequest, match="came back at revision"):
        run_available(a_reader(changing), place)
    assert run_available(a_reader(changing, replaced="skip"), place)[1] == [[]]


def test_an_interval_leaves_out_other_files_and_changes(changing: Changing) -> None:
    changing.publish(0, 4, 1)
    reader = a_reader(changing, interval=str(Interval(1, 3)))
    _, batches = run_available(reader, reader.initialOffset())
    assert [ms for _, ms in inserted(batches)] == [1, 2]


def test_a_query_may_begin_after_a_revision(changing: Changing) -> None:
    changing.publish(0, 2, 1)
    revision = changing.store.revision()
    rows = changing.publish(2, 2, 1)
    reader = a_reader(changing, startingRevision=str(revision))
    _, batches = run_available(reader, reader.initialOffset())
    assert sorted(inserted(batches)) == sorted(rows)


def test_a_cursor_follows_the_completed_micro_batches(changing: Changing) -> None:
    changing.publish(0, 2, 1, 3)
    first = changing.store.revision()
    reader = a_reader(changing, cursor="copies", maxFilesPerTrigger="2")
    # Each file has 7 rows here.
    places = [reader.initialOffset()]
    places.append(reader.latestOffset(places[-1], reader.getDefaultReadLimit()))
    assert changing.followed == [("copies", first, 21)]
    changing.publish(2, 2, 1, 3)
    for _ in range(4):
        places.append(reader.latestOffset(places[-1], reader.getDefaultReadLimit()))
    left = [(revision, rows) for _, revision, rows in changing.followed]
    assert left == [(first, 21), (first, 7), (first + 1, 14), (first + 1, 0)]
    # After a restart, it goes on where the checkpoint is.
    changing.followed.clear()
    again = a_reader(changing, cursor="copies", maxFilesPerTrigger="2")
    again.latestOffset(places[2], again.getDefaultReadLimit())
    assert changing.followed == [("copies", first + 1, 14)]
    a_reader(changing).latestOffset(places[0], ReadAllAvailable())
    assert len(changing.followed) == 1


def test_the_router_knows_how_far_a_query_is_behind(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    try:
        data.publish("d/e", table(["2013-01-01", "2013-01-02"]))
        with Served(data.routes()) as served:
            options = {"url": served.url, "datasource": "d/e", "cursor": "copies"}
            reader = PenstockSource(options).streamReader(StructType())
            place = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            assert [one.rows_behind for one in data.store.stream_cursors.list()] == [2]
            reader.latestOffset(place, ReadAllAvailable())
            assert [one.rows_behind for one in data.store.stream_cursors.list()] == [0]
            data.publish("d/e", table(["2013-02-01"]), FEBRUARY)
            assert [one.rows_behind for one in data.store.stream_cursors.list("d/e")] == [1]
        with pytest.raises(InvalidRequest, match="option cursor needs option"):
            StreamSource({"dataDir": str(tmp_path), "datasource": "d", "cursor": "c"})
    finally:
        data.close()


def test_a_revision_that_is_no_longer_known_ends_the_query(changing: Changing) -> None:
    changing.publish(0, 2, 1)
    place = a_reader(changing).initialOffset()
    changing.store.segments.mark_unused(changing.ids)
    changing.store.segments.kill(changing.ids)
    with pytest.raises(NotFound, match="no longer known"):
        run_available(a_reader(changing, replaced="skip"), place)


def test_a_data_folder_and_a_router_have_the_same_changes(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    try:
        data.publish("d", table(["2013-01-01"]))
        after = data.store.revision()
        data.publish("d", table(["2013-01-02"]), version="v2")
        with Served(data.routes()) as served:
            by_router = StreamSource({"url": served.url, "datasource": "d"})
            by_folder = StreamSource({"dataDir": str(tmp_path), "datasource": "d"})
            assert by_router.now() == by_folder.now() == after + 1
            page = by_folder.changes(after, 10)
            assert by_router.changes(after, 10) == page
            [commit] = page.commits
            assert [one.kind.value for one in commit.changes] == ["delete", "insert"]
            assert list(by_router.files(after)) == by_folder.files(after)
            assert by_folder.files(after) == [commit.changes[0].file]
            reader = PenstockSource({"url": served.url, "datasource": "d"}).streamReader(N)
            with pytest.raises(InvalidRequest, match="there is no column 'n': there are __time"):
                reader.initialOffset()
    finally:
        data.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"replaced": "maybe"}, "use fail, skip, changes"),
        ({"maxFilesPerTrigger": "0"}, "use a whole number from 1 on"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger is '1k'"),
        ({"startingRevision": "-1"}, "use a whole number from 0 on"),
        ({"cursor": "a b"}, "cursor"),
        ({"includeRunning": "true"}, "a stream has published rows only"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        StreamOptions.of(options)


def test_the_ways_to_handle_replaced_rows_are_these() -> None:
    assert [one.value for one in Replaced] == ["fail", "skip", "changes"]

"""The files that queries see, kept from revision to revision, against those of a new source."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.segments.segment import Segment, ShardSpec
from penstock.segments.shard_spec import ShardKind
from penstock.spark.tables.table_files import TableFile
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata

HOUR_MS = 3_600_000
DEEP = "/no/segments"
COLUMNS = (("__time", "timestamp"), ("n", "bigint"))

# Start and length in hours, version, number of segments, whether it only hides rows; or the number
# of a segment that becomes unused.
publishes = st.tuples(
    st.integers(0, 9),
    st.integers(1, 4),
    st.sampled_from(("v1", "v2", "v3")),
    st.integers(1, 2),
    st.booleans(),
)
steps = st.lists(st.one_of(publishes, st.integers(0, 9)), min_size=1, max_size=10)


def segments(
    start: int, hours: int, version: str, count: int, *, hides: bool = False
) -> list[Segment]:
    interval = Interval(start * HOUR_MS, (start + hours) * HOUR_MS)
    kind: ShardKind = "tombstone" if hides else "numbered"
    return [
        Segment(
            "x",
            interval,
            version,
            {"type": "local", "path": f"{DEEP}/{start}-{hours}-{version}-{number}"},
            ShardSpec(number, 1 if hides else count, kind),
            columns=COLUMNS,
        )
        for number in range(1 if hides else count)
    ]


def publish(store: MetadataStore, some: list[Segment]) -> list[str]:
    """Publish segments; return their ids, or none where others exclude them."""
    rows = tuple(one.to_row() for one in some)
    outcome = store.publish(PublishRequest(f"task {rows[0].id}", "x", rows))
    return [row.id for row in rows] if outcome.ok else []


def files(source: VisibleFiles) -> tuple[TableFile, ...]:
    return source.tables().files.get("x", ())


@given(steps)
def test_files_are_those_of_a_new_source_after_each_change(
    changes: list[tuple[int, int, str, int, bool] | int],
) -> None:
    with TemporaryDirectory() as name, open_metadata(name, VirtualClock()) as store:
        ids = list[str]()
        source = VisibleFiles(store, DEEP)
        taken = set[tuple[str, int]]()
        for change in changes:
            if isinstance(change, int):
                store.segments.mark_unused(ids[change : change + 1])
            else:
                start, hours, version, count, hides = change
                wanted = {(version, hour) for hour in range(start, start + hours)}
                if not taken & wanted:  # intervals of one version do not overlap
                    taken |= wanted
                    some = segments(start, hours, version, count, hides=hides)
                    ids += publish(store, some)
            assert files(source) == files(VisibleFiles(store, DEEP))


def test_files_of_unchanged_segments_are_taken_over(tmp_path: Path) -> None:
    with open_metadata(tmp_path, VirtualClock()) as store:
        source = VisibleFiles(store, DEEP)
        for hour in (0, 1, 2, 3):
            publish(store, segments(hour, 1, "v1", 2))
        before = files(source)
        publish(store, segments(1, 1, "v2", 1))
        after = files(source)
        assert len(before) == 8
        assert len(after) == 7
        assert [known for known in before if any(known is one for one in after)] == [
            *before[:2],
            *before[4:],
        ]

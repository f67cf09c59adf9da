"""What is queued, dropped, barred and told of the making of projections; the job is a stand-in."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core.intervals import Interval
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.segments.layout import projection_file
from penstock.spark.connect.spark_sessions import SparkDiskFull
from penstock.spark.projections import projection_builder as making
from penstock.spark.projections.build_job import ProjectionFileReport, ProjectionFolder
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.plan import GroupingKey, Measure, ProjectionPlan
from penstock.spark.projections.projection_builder import BuilderOptions, ProjectionBuilder
from penstock.spark.projections.projection_catalog import ProjectionCatalog
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.testing.clock import VirtualClock
from tests.spark.table_kit import GivenTables

COLUMNS = (("__time", "timestamp"), ("name", "string"))
PLAN = ProjectionPlan(
    "p", (GroupingKey("name", "`name`"),), (Measure("rows", "", "__p_rows"),), (), "0" * 16
)
OTHER = ProjectionPlan("q", PLAN.keys, PLAN.measures, (), "1" * 16)


class NoSpark:
    """Sessions that give nothing to work with; the job is a stand-in, too."""

    def with_conf(self, _conf: object) -> NoSpark:
        return self

    @contextlib.contextmanager
    def use(self) -> Iterator[object]:
        yield SimpleNamespace(addTag=lambda _tag: None, removeTag=lambda _tag: None)

    def close(self) -> None:
        """Do nothing."""


class ProjectionBuilderWorld:
    """A maker whose jobs write files of no content, or raise what a test says."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, options: BuilderOptions) -> None:
        self.clock = VirtualClock()
        self.shelf = ProjectionFiles(str(folder), self.clock)
        self.jobs: list[list[str]] = []
        self.elsewhere = ""
        self.fails: Callable[[Sequence[TableFile]], None] = lambda _files: None
        tables = GivenTables()
        sessions: object = NoSpark()
        self.maker = ProjectionBuilder(
            sessions,  # type: ignore[arg-type]
            self.shelf,
            tables,
            ProjectionCatalog(tables),
            self.clock,
            options,
        )
        patch.setattr(making, "make_files", self._make)
        patch.setattr(making, "needs_workers", lambda _spark, _files: False)

    def _make(
        self,
        _spark: object,
        _plan: ProjectionPlan,
        _columns: Columns,
        files: Sequence[TableFile],
        folder: ProjectionFolder,
    ) -> dict[str, ProjectionFileReport]:
        self.jobs.append([file.path for file in files])
        self.fails(files)
        made = {}
        for file in files:
            name = projection_file(file.path)
            path = Path(self.elsewhere or folder.root) / folder.relative / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 20)
            made[name] = ProjectionFileReport(name, 20, 1)
        return made

    def request(self, *numbers: int, plan: ProjectionPlan = PLAN, size: int = 100) -> None:
        files = [file(number, size) for number in numbers]
        self.maker.request("d", plan, COLUMNS, [one for one in files if self.maker.eligible(one)])

    def counts(self) -> tuple[float, float, float]:
        maker = self.maker
        return maker.made.value, maker.failed.value, maker.dropped.value


def file(number: int, size: int = 100) -> TableFile:
    hour = 3_600_000
    return TableFile(
        str(number), COLUMNS, Interval(number * hour, (number + 1) * hour), size_bytes=size
    )


def of_projections(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of projections, among what other threads may log."""
    names = "penstock.spark.projections"
    return [one.getMessage() for one in caplog.records if one.name.startswith(names)]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProjectionBuilderWorld]:
    def made(**options: float) -> ProjectionBuilderWorld:
        bounds = {"file_bytes_min": 10, "batch_files": 3, "batch_bytes": 250, "queued_files": 6}
        return ProjectionBuilderWorld(tmp_path, monkeypatch, BuilderOptions(**(bounds | options)))  # type: ignore[arg-type]

    return made


def test_what_is_asked_first_is_first_one_plan_a_job_within_bounds(
    make: Callable[..., ProjectionBuilderWorld],
) -> None:
    world = make()
    world.request(3, 2, 1)
    world.request(9, plan=OTHER)
    world.request(5, 4, 3, size=60)
    world.maker.work()
    # Two of 100 bytes, then the bound; what is queued stays in its order; one is asked for twice.
    assert world.jobs == [["3", "2"], ["1", "5", "4"], ["9"]]
    assert world.counts() == (6, 0, 0)
    world.request(1, 2, 3)
    world.maker.work()
    assert len(world.jobs) == 3


def test_a_file_that_is_larger_than_a_job_has_one_of_its_own(
    make: Callable[..., ProjectionBuilderWorld],
) -> None:
    world = make()
    world.request(2, 1, size=10_000)
    world.maker.work()
    assert world.jobs == [["2"], ["1"]]


def test_which_files_are_worth_it(make: Callable[..., ProjectionBuilderWorld]) -> None:
    maker = make().maker
    one = file(1)
    assert maker.eligible(one)
    assert not maker.eligible(file(1, 9))
    for more in ({"announced": True}, {"clip": Interval(0, 1)}):
        assert not maker.eligible(
            TableFile(one.path, one.columns, one.interval, size_bytes=100, **more)  # type: ignore[arg-type]
        )


def test_what_is_too_much_is_dropped_with_a_count_and_asked_for_again(
    make: Callable[..., ProjectionBuilderWorld],
) -> None:
    world = make()
    world.request(*range(10))
    assert world.counts() == (0, 0, 4)
    world.maker.work()
    world.request(*range(6, 10))  # the others exist
    world.maker.work()
    assert world.counts() == (10, 0, 4)


@pytest.mark.parametrize(("kind", "tries"), [(SparkDiskFull, 1), (EngineUnavailable, 2)])
def test_a_full_disk_is_told_once_and_ends_the_making_for_a_while(
    make: Callable[..., ProjectionBuilderWorld],
    caplog: pytest.LogCaptureFixture,
    kind: type[EngineUnavailable],
    tries: int,
) -> None:
    world = make(pause_s=600)

    def full(_files: Sequence[TableFile]) -> None:
        raise kind("no space left")

    world.fails = full
    world.request(*range(6))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            world.maker.work()
            world.request(*range(6))
    assert len(world.jobs) == tries
    assert world.counts() == (0, 2, 4)
    (line,) = of_projections(caplog)
    assert line == (
        "projection p of datasource d could not be built; queries read the rows: no space left"
    )
    world.fails = lambda _files: None
    world.clock.advance(600)
    world.request(*range(6))
    world.maker.work()
    assert world.counts() == (6, 2, 4)


def test_a_session_that_ended_with_its_spark_is_lost_once(
    make: Callable[..., ProjectionBuilderWorld],
) -> None:
    world = make(pause_s=600)

    def lost(_files: Sequence[TableFile]) -> None:
        if len(world.jobs) == 1:
            raise EngineUnavailable("no active session")

    world.fails = lost
    world.request(2, 1)
    world.maker.work()
    assert world.jobs == [["2", "1"], ["2", "1"]]
    assert world.counts() == (2, 0, 0)


def test_one_bad_file_of_a_job_does_not_keep_the_others_from_it(
    make: Callable[..., ProjectionBuilderWorld], caplog: pytest.LogCaptureFixture
) -> None:
    world = make(pause_s=600)

    def bad(files: Sequence[TableFile]) -> None:
        if "2" in [file.path for file in files]:
            raise EngineFailure("it is cut")

    world.fails = bad
    for _ in range(3):
        world.request(2, 1)
        world.maker.work()
    assert world.jobs == [["2", "1"], ["2"], ["1"]]
    assert world.counts() == (1, 1, 0)
    assert caplog.messages == [
        "projection p of datasource d could not be built from 2; queries read its rows: it is cut"
    ]


def test_of_a_store_that_the_jvm_cannot_read_nothing_is_made(
    make: Callable[..., ProjectionBuilderWorld],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = make()
    monkeypatch.setattr(making, "needs_workers", lambda _spark, _files: True)
    world.request(3, 2, 1)
    world.maker.work()
    assert world.jobs == []
    assert world.counts() == (0, 2, 1)
    (line,) = of_projections(caplog)
    assert "Spark's JVM has no driver" in line


def test_what_workers_wrote_elsewhere_is_no_file(
    make: Callable[..., ProjectionBuilderWorld], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = make()
    world.elsewhere = str(tmp_path / "of another host")
    world.request(1)
    world.maker.work()
    assert world.counts() == (0, 1, 0)
    assert not world.shelf.made("d", PLAN.digest)
    assert "is not the same folder here and where Spark's workers are" in caplog.text


def test_nothing_is_made_after_the_end(make: Callable[..., ProjectionBuilderWorld]) -> None:
    world = make()
    world.request(1)
    world.maker.stop()
    world.request(2)
    world.maker.work()
    assert world.jobs == []
    world.maker.start()
    world.maker.close()

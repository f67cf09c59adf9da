"""Views of datasources with very many files: what a persist costs, without a Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.intervals import Interval
from penstock.indexing.engine import EngineFailure
from penstock.spark import views
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.table_files import TableFile
from penstock.spark.views import Views


class NoFrame:
    """Stands for a DataFrame, and for the session that makes it."""

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Views:
    monkeypatch.setattr(views, "table", lambda *_given: NoFrame())
    return Views(NoFrame())  # type: ignore[arg-type]


def file(folder: Path, number: int) -> TableFile:
    path = folder / f"{number}.parquet"
    path.write_bytes(b"rows")
    return TableFile(str(path), (("__time", "timestamp"),), Interval(0, 1), size_bytes=4)


def test_only_files_that_came_since_are_looked_at(
    made: Views, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    stat = Path.stat

    def counted(path: Path, *, follow_symlinks: bool = True) -> object:
        looked.append(path.stem)
        return stat(path, follow_symlinks=follow_symlinks)

    files = tuple(file(tmp_path, number) for number in range(20))
    more = (*files, file(tmp_path, 20))
    monkeypatch.setattr(Path, "stat", counted)
    made.update({"x": files}, ["x"])
    assert len(looked) == 20
    looked.clear()
    made.update({"x": more}, ["x"])
    assert looked == ["20"]
    made.forget()
    made.update({"x": more}, ["x"])
    assert len(looked) == 22


def test_a_new_file_that_was_cut_is_refused_at_each_try(made: Views, tmp_path: Path) -> None:
    first, cut = file(tmp_path, 0), file(tmp_path, 1)
    made.update({"x": (first,)}, ["x"])
    Path(cut.path).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(EngineFailure, match="has 0 bytes, not 4"):
            made.update({"x": (first, cut)}, ["x"])


def test_the_columns_of_many_files_are_those_of_their_kinds() -> None:
    kinds = [(("a", "bigint"),), (("A", "double"), ("b", "string")), (("b", "bigint"),)]
    files = [TableFile("p", kinds[n % 3], Interval(0, 1)) for n in range(30)]
    assert union_columns(files) == union_columns(files[:3]) == (("a", "double"), ("b", "string"))


class Catalog:
    """The session's views; a drop may be cut, as by a query that is cancelled meanwhile."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.dropped: list[str] = []

    def dropTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        """Drop a view."""
        if self.failures:
            raise self.failures.pop()
        self.dropped.append(name)


def test_a_view_that_could_not_be_dropped_is_dropped_by_the_next_query(
    made: Views, tmp_path: Path
) -> None:
    """All later queries failed with a KeyError until the session was another one."""
    catalog = Catalog()
    made.session.catalog = catalog  # type: ignore[misc,assignment]
    made.update({"x": (file(tmp_path, 0),)}, ["x"])
    hidden = made.hidden(["x"])["x"]
    catalog.failures.append(RuntimeError("the query was cancelled"))
    with pytest.raises(RuntimeError):
        made.update({}, [])
    made.update({}, [])
    assert catalog.dropped == [hidden]
    assert made.hidden(["x"]) == {}

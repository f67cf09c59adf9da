"""The temporary view of each datasource in one Spark session, kept in step with the metadata.

Owns the plan of a view: one scan for all files of like columns, joined by UNION ALL where the types
of a column differ or a file counts only in part. Files are read by the JVM, unless it cannot reach
their store; nothing runs here but the definition. Not thread-safe: `sql` holds its mutex around it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.core.intervals import Interval
from penstock.core.twins import ColumnNames, twins_in
from penstock.indexing.engine import EngineFailure
from penstock.spark.expressions import column, instant
from penstock.spark.schematext import ddl, quoted
from penstock.spark.tables.columns import KnownColumns, union_columns
from penstock.spark.tables.elsewhere import needs_workers, read_by_workers
from penstock.spark.tables.model import Columns, TableFile
from penstock.spark.topic.rowshape import TIME_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Views:
    """The views that are defined in one Spark session, under names that nobody can guess.

    Args:
        session: Where they are defined.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._defined: dict[str, tuple[TableFile, ...]] = {}
        self._names: dict[str, str] = {}

    def bring(self, files: Mapping[str, tuple[TableFile, ...]], names: Iterable[str]) -> None:
        """Define the views of these datasources anew where their files changed; drop gone ones."""
        for name in [n for n in self._defined if not files.get(n)]:
            # Dropping takes the bare name, while defining parses it.
            self.session.catalog.dropTempView(self._names[name])
            del self._defined[name], self._names[name]
        for name in names:
            wanted = files[name]
            known = self._defined.get(name)
            if wanted and known != wanted:
                # Whoever persists adds a few files to very many, which were looked at before.
                seen = {file.path for file in known or ()}
                _check_sizes(file for file in wanted if file.path not in seen)
                hidden = self._names.setdefault(name, hidden_name())
                table(self.session, wanted).createOrReplaceTempView(quoted(hidden))
                self._defined[name] = wanted

    def hidden(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names of the views of these datasources, by datasource; not of empty ones."""
        return {name: self._names[name] for name in names if name in self._names}

    def forget(self) -> None:
        """Define every view anew at its next use."""
        self._defined = dict.fromkeys(self._defined, ())


class Outlines:
    """Views without data, with the names and columns of datasources, in one Spark session.

    Args:
        session: Where they are defined.
        known: The columns of datasources.
    """

    def __init__(self, session: SparkSession, known: KnownColumns | None = None) -> None:
        self.session = session
        self._known = known or KnownColumns()
        self._seen: dict[str, tuple[TableFile, ...]] = {}
        self._columns: dict[str, Columns] = {}

    def bring(self, files: Mapping[str, tuple[TableFile, ...]], names: Iterable[str]) -> None:
        """Define the outlines of these datasources anew where columns changed; drop gone ones."""
        for name in [n for n in self._columns if not files.get(n)]:
            self.session.catalog.dropTempView(name)
            del self._columns[name], self._seen[name]
        for name in names:
            wanted = files[name]
            if not wanted or self._seen.get(name) == wanted:
                continue
            columns = self._known.of(name, wanted)
            if self._columns.get(name) != columns:
                outline(self.session, name, columns)
                self._columns[name] = columns
            self._seen[name] = wanted


def outline(session: SparkSession, name: str, columns: Columns) -> None:
    """Define a view without data under a name."""
    # With a row: from a plan that cannot have one, Spark takes the limit of 0 (see `sqlwall`) away,
    # and goes on to evaluate what is constant.
    _nulls(session, columns, 1).createOrReplaceTempView(quoted(name))


def hidden_name() -> str:
    """Return a name for a view that nobody can guess, and that needs no quotes."""
    return f"view_{secrets.token_hex(16)}"


def _check_sizes(files: Iterable[TableFile]) -> None:
    """Refuse files that were cut: Spark takes an empty one for no rows, without a word."""
    for file in files:
        if not file.size_bytes or "://" in file.path:
            continue
        with suppress(FileNotFoundError):  # Spark may see it elsewhere, or say so
            size = Path(file.path).stat().st_size
            if size != file.size_bytes:
                what = f"has {size} bytes, not {file.size_bytes}"
                raise EngineFailure(damaged(file.path, what, announced=file.announced))


def damaged(path: str, what: str, *, announced: bool) -> str:
    """Say what is wrong with a file, and the mend: a segment's, or a running task's."""
    if announced:
        return (
            f"{path} {what}: it is of a running task, whose id is in the path. End the task with "
            "penstock task stop; the next one reads its events again"
        )
    return (
        f"{path} {what}: put the file back from a copy; or take its segment out with "
        "penstock segment disable, and ingest its interval again"
    )


def table(
    session: SparkSession, files: Sequence[TableFile], columns: Columns | None = None
) -> DataFrame:
    """Return the rows of the files, maybe none, as one DataFrame.

    Args:
        session: Where it is for.
        files: The files; each is read once.
        columns: Its columns, when they are more than those of the files.
    """
    if columns is None:
        columns = union_columns(files)
    if not files:
        return _nulls(session, columns, 0)
    if needs_workers(session, files):
        return read_by_workers(session, files, columns)
    # Most files have the same columns: what follows from them is found once.
    scans = {own: _scanned_as(own, columns) for own in {file.columns for file in files}}
    groups: dict[tuple[Columns, Interval | None], list[str]] = {}
    for file in files:
        groups.setdefault((scans[file.columns], file.clip), []).append(file.path)
    parts = [
        _part(session, scanned, clip, paths, columns) for (scanned, clip), paths in groups.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    return whole


def _nulls(session: SparkSession, columns: Columns, rows: int) -> DataFrame:
    nothing = (sf.lit(None).cast(type_).alias(name) for name, type_ in columns)
    return session.range(rows).select(*nothing)


def _scanned_as(own: Columns, columns: Columns) -> Columns:
    """Return the columns to scan files with: their own types; those they lack are read as null."""
    exact = bool(twins_in(name for name, _ in columns))
    by_name = ColumnNames({name: (name, type_) for name, type_ in own}, exact=exact)
    return tuple(by_name.get(name) or (name, type_) for name, type_ in columns)


def _part(
    session: SparkSession,
    scanned: Columns,
    clip: Interval | None,
    paths: Sequence[str],
    columns: Columns,
) -> DataFrame:
    rows = session.read.schema(ddl(scanned)).parquet(*paths)
    if clip is not None:
        time = column(TIME_COLUMN)
        rows = rows.where((time >= instant(clip.start_ms)) & (time < instant(clip.end_ms)))
    if scanned == columns:
        return rows
    return rows.select(
        *(
            column(read_as).cast(type_).alias(name)
            for (read_as, _), (name, type_) in zip(scanned, columns, strict=True)
        )
    )

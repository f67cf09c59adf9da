"""Temporary views of datasources in one Spark session, kept up to date with the metadata.

Owns the plan of a view: one scan for all files with similar columns, joined by UNION ALL if the
types of a column differ or a file counts only in part. The JVM reads the files, unless it cannot
reach their store; only the definition runs here. Not thread-safe: `sql` holds its mutex.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.core.column_case import ColumnNames, case_variants_in
from penstock.core.intervals import Interval
from penstock.indexing.engine import EngineFailure
from penstock.spark.ddl import ddl, quoted
from penstock.spark.expressions import column, instant
from penstock.spark.tables.remote_reads import needs_workers, read_by_workers
from penstock.spark.tables.table_columns import KnownColumns, union_columns
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Views:
    """Views defined in one Spark session, under names that cannot be guessed.

    Args:
        session: The Spark session of the views.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._defined: dict[str, tuple[TableFile, ...]] = {}
        self._names: dict[str, str] = {}

    def update(self, files: Mapping[str, tuple[TableFile, ...]], names: Iterable[str]) -> None:
        """Redefine the views of these datasources if files changed; drop views without files."""
        for name in [n for n in self._defined if not files.get(n)]:
            # DROP takes the unquoted name, while CREATE parses it.
            self.session.catalog.dropTempView(self._names[name])
            del self._defined[name], self._names[name]
        for name in names:
            wanted = files[name]
            known = self._defined.get(name)
            if wanted and known != wanted:
                # A streaming task adds a few files to many that were compared before.
                seen = {file.path for file in known or ()}
                _check_sizes(file for file in wanted if file.path not in seen)
                hidden = self._names.setdefault(name, hidden_name())
                table(self.session, wanted).createOrReplaceTempView(quoted(hidden))
                self._defined[name] = wanted

    def hidden(self, names: Iterable[str]) -> dict[str, str]:
        """Return the view names of these datasources, by datasource; without empty ones."""
        return {name: self._names[name] for name in names if name in self._names}

    def forget(self) -> None:
        """Redefine every view at its next use."""
        self._defined = dict.fromkeys(self._defined, ())


class OutlineViews:
    """Views without data, with the names and columns of datasources, in one Spark session.

    Args:
        session: The Spark session of the views.
        known: The columns of datasources.
    """

    def __init__(self, session: SparkSession, known: KnownColumns | None = None) -> None:
        self.session = session
        self._known = known or KnownColumns()
        self._seen: dict[str, tuple[TableFile, ...]] = {}
        self._columns: dict[str, Columns] = {}

    def update(self, files: Mapping[str, tuple[TableFile, ...]], names: Iterable[str]) -> None:
        """Redefine the outlines of these datasources if columns changed; drop unused ones."""
        for name in [n for n in self._columns if not files.get(n)]:
            self.session.catalog.dropTempView(name)
            del self._columns[name], self._seen[name]
        for name in names:
            wanted = files[name]
            if not wanted or self._seen.get(name) == wanted:
                continue
            columns = self._known.of(name, wanted)
            if self._columns.get(name) != columns:
                define_outline_view(self.session, name, columns)
                self._columns[name] = columns
            self._seen[name] = wanted


def define_outline_view(session: SparkSession, name: str, columns: Columns) -> None:
    """Define a view without data under a name."""
    null_row(session, columns).createOrReplaceTempView(quoted(name))


def null_row(session: SparkSession, columns: Columns) -> DataFrame:
    """Return one row without values, over which Spark resolves expressions."""
    # With a row: if the plan cannot have one, Spark removes the limit of 0 (see `sql_guard`) and
    # evaluates constant expressions.
    return _nulls(session, columns, 1)


def hidden_name() -> str:
    """Return a view name that cannot be guessed, and that needs no quotes."""
    return f"view_{secrets.token_hex(16)}"


def _check_sizes(files: Iterable[TableFile]) -> None:
    """Refuse truncated files: Spark reads an empty one as no rows, without an error."""
    for file in files:
        if not file.size_bytes or "://" in file.path:
            continue
        with suppress(FileNotFoundError):  # Spark may reach it, or reports it
            size = Path(file.path).stat().st_size
            if size != file.size_bytes:
                what = f"has {size} bytes, not {file.size_bytes}"
                raise EngineFailure(damaged(file.path, what, announced=file.announced))


def damaged(path: str, what: str, *, announced: bool) -> str:
    """Return the error for a damaged file, with the remedy for a segment or a running task."""
    if announced:
        return (
            f"{path} {what}: it belongs to the running task in its path. End the task with "
            "penstock task stop; the next one reads its events again"
        )
    return (
        f"{path} {what}: restore the file from a copy; or disable its segment with "
        "penstock segment disable, and ingest its interval again"
    )


def table(
    session: SparkSession, files: Sequence[TableFile], columns: Columns | None = None
) -> DataFrame:
    """Return the rows of the files, possibly none, as one DataFrame.

    Args:
        session: The Spark session.
        files: The files; each is read once.
        columns: The columns, if there are more than those of the files.
    """
    if columns is None:
        columns = union_columns(files)
    if not files:
        return _nulls(session, columns, 0)
    if needs_workers(session, files):
        return read_by_workers(session, files, columns)
    # Most files have the same columns, so their plan is computed once.
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
    """Return the columns with which to scan files: their own types; missing columns are null."""
    exact = bool(case_variants_in(name for name, _ in columns))
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

"""Queries of datasources whose columns differ only in case (`core.column_case`).

Spark ignores case in names and could read neither of such columns. A query that reads one of these
datasources therefore runs in separate Spark sessions that distinguish case in all names. Owns those
sessions, the choice of the sessions for a query, and the hint for a query that fails because it
writes a name in another case.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.column_case import case_variants_in, shown_case_variants
from penstock.core.sql.druid_hints import quoted_names, unresolved_column
from penstock.spark.sql_guard import GUARD_CONF, place_in
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.spark.views import OutlineViews, Views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.connect.running_calls import RunningCall
    from penstock.spark.connect.spark_sessions import SparkSessions


_READERS_MAX: Final = 16
"""Number of idle sessions for readers with different rights that are kept."""


@dataclass(slots=True)
class _Outlined:
    """The session that resolves queries of readers with the same rights.

    Attributes:
        sessions: Spark, with the settings of this session.
        outlines: The outlines of the datasources that they may read.
        users: Number of queries that use it now.
    """

    sessions: SparkSessions
    outlines: OutlineViews | None = None
    users: int = 0


class QuerySessions:
    """The Spark sessions in which queries are resolved and run; any thread may use them.

    Queries of readers with different rights are resolved in different sessions, so that no session
    has an outline that one of its readers may not read. All of them run in one session, in which
    the names of the views cannot be guessed.

    A mutex is held while views are defined, which all queries of a session share and wait for.
    Another one guards the table of readers.

    Args:
        sessions: Spark, with the settings that queries have.
        known: The columns of datasources.
    """

    def __init__(self, sessions: SparkSessions, known: KnownColumns) -> None:
        self._sessions = sessions
        self._known = known
        self._mutex = threading.Lock()
        self._views: Views | None = None
        self._readers_mutex = threading.Lock()
        self._readers: OrderedDict[str, _Outlined] = OrderedDict()

    @contextlib.contextmanager
    def analysis_session(
        self,
        running: RunningCall,
        files: Mapping[str, tuple[TableFile, ...]],
        names: Sequence[str],
        reader: str = "",
    ) -> Iterator[SparkSession]:
        """Provide, for a block, the session that has the outlines of these datasources.

        Args:
            running: The cancellable work.
            files: The files of all datasources that the reader may read.
            names: The datasources to outline.
            reader: Text that readers with the same rights share; empty: those who may read all.
        """
        with (
            self._outlined_for(reader) as own,
            own.sessions.use() as spark,
            running.tagged(spark),
        ):
            with self._mutex:
                if own.outlines is None or own.outlines.session is not spark:
                    own.outlines = OutlineViews(spark, self._known)
                own.outlines.update(files, names)
            yield spark

    @contextlib.contextmanager
    def _outlined_for(self, reader: str) -> Iterator[_Outlined]:
        with self._readers_mutex:
            own = self._readers.get(reader)
            if own is None:
                own = self._readers[reader] = _Outlined(self._sessions.with_conf(GUARD_CONF))
            self._readers.move_to_end(reader)
            own.users += 1
            idle = [key for key, one in self._readers.items() if key and not one.users]
            closed = [self._readers.pop(key) for key in idle[: max(0, len(idle) - _READERS_MAX)]]
        try:
            for one in closed:
                one.sessions.close()
            yield own
        finally:
            with self._readers_mutex:
                own.users -= 1

    @contextlib.contextmanager
    def row_session(
        self, files: Mapping[str, tuple[TableFile, ...]], names: Sequence[str]
    ) -> Iterator[tuple[SparkSession, Mapping[str, str]]]:
        """Provide, for a block, the session that has the rows, and the names of their views."""
        with self._sessions.use() as spark:
            with self._mutex:
                if self._views is None or self._views.session is not spark:
                    self._views = Views(spark)
                self._views.update(files, names)
                hidden = self._views.hidden(names)
            yield spark, hidden

    def forget_views(self) -> None:
        """Drop the views, because Spark caches the sizes of files as long as a view exists."""
        with self._mutex:
            if self._views is not None:
                self._views.forget()

    def drop(self) -> None:
        """Drop the sessions of a Spark that has ended."""
        self._sessions.drop()
        for one in self._every_reader():
            one.sessions.drop()

    def close(self) -> None:
        """End the Spark sessions."""
        self._sessions.close()
        for one in self._every_reader():
            one.sessions.close()

    def _every_reader(self) -> list[_Outlined]:
        with self._readers_mutex:
            return list(self._readers.values())


class CaseTables:
    """Datasources of a query that have case variants, with all their columns; false if none do.

    Args:
        files: The files of all datasources.
        names: The datasources that the query may name.
        known: The columns of datasources.

    Attributes:
        are_read: Whether the query reads one of them; it may use their names for other things.
    """

    def __init__(
        self,
        files: Mapping[str, tuple[TableFile, ...]],
        names: Iterable[str],
        known: KnownColumns,
    ) -> None:
        self.are_read = False
        self._columns: dict[str, Columns] = {}
        for name in names:
            columns = known.of(name, files[name])
            if case_variants_in(column for column, _ in columns):
                self._columns[name] = columns

    def __bool__(self) -> bool:
        return bool(self._columns)

    def without(
        self, files: Mapping[str, tuple[TableFile, ...]]
    ) -> dict[str, tuple[TableFile, ...]]:
        """Return the other datasources."""
        return {name: found for name, found in files.items() if name not in self._columns}

    def why(self) -> str:
        """Return the reason why names are case-sensitive in this query."""
        name, columns = next(iter(self._columns.items()))
        shown = shown_case_variants(case_variants_in(column for column, _ in columns))
        return f'case counts in this query, because {shown} of "{name}" differ only in case'

    def explained(self, text: str) -> str:
        """Return Spark's error for a query, with a hint at names in another case."""
        unknown = unresolved_column(text)
        if not unknown:
            return text
        name = unknown[-1]
        found = {
            datasource: [one for one, _ in columns if one.lower() == name.lower() and one != name]
            for datasource, columns in self._columns.items()
        }
        alike = {datasource: names for datasource, names in found.items() if names}
        if not alike:
            # An alias, among the names that Spark suggests.
            if any(one != name and one.lower() == name.lower() for one in quoted_names(text)):
                return f"{text}\n{self.why()}: write each name as it was defined"
            return text
        where = place_in(text)
        place = f" ({where})" if where else ""
        several = [one for one in alike.items() if len(one[1]) > 1]
        datasource, names = several[0] if several else next(iter(alike.items()))
        if several:
            return (
                f'"{name}"{place} may be {" or ".join(_quoted(names))} of "{datasource}", which'
                " differ only in case: write the intended name exactly, in double quotes"
            )
        return (
            f'there is no column "{name}"{place}, but there is "{names[0]}" of "{datasource}":'
            f' {self.why()}; write "{names[0]}"'
        )

    def explained_table(self, name: str, datasources: Iterable[str]) -> str:
        """Return a hint at a datasource whose name differs in case; empty if there is none."""
        alike = [one for one in datasources if one.lower() == name.lower() and one != name]
        if len(alike) != 1:
            return ""
        return (
            f'there is no datasource "{name}", but there is "{alike[0]}": {self.why()}; write'
            f' "{alike[0]}"'
        )


def _quoted(names: Iterable[str]) -> list[str]:
    return [f'"{name}"' for name in names]

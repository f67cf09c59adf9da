"""The tables that one principal may read: for it, other datasources do not exist.

Owns the filter. Views, listings and messages are made from these tables only, so that a statement
finds no trace of the others. Does not decide who may read what (`core.access`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError, Unavailable
from penstock.spark.tables.table_files import Feeder, Tables, TableSource

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections


logger = logging.getLogger(__name__)


def listed_tables(source: TableSource) -> Tables:
    """Return all tables of a source, for a principal that may read some of them.

    Raises:
        Unavailable: They cannot be listed. The message names nothing, because the reason may be the
            path of a datasource that the principal may not read; it is logged.
    """
    try:
        return source.tables()
    except Unavailable:
        raise
    except PenstockError as error:  # narrow: translates
        logger.warning("the files of datasources cannot be listed: %s", error)
        raise Unavailable(
            "the files of datasources cannot be listed: try again, or ask an administrator, who"
            " finds the reason in the log"
        ) from None


def readable_tables(tables: Tables, may_read: Callable[[str], bool]) -> Tables:
    """Return the readable datasources of tables, at the same revision."""
    found = {name: files for name, files in tables.files.items() if may_read(name)}
    return tables if len(found) == len(tables.files) else Tables(tables.revision, found)


class ReadableTables:
    """`TableSource` with some of the datasources of another one. As thread-safe as its parts.

    Args:
        source: The source of all datasources.
        may_read: Returns whether a datasource is one of them, by its stored name.
    """

    def __init__(self, source: TableSource, may_read: Callable[[str], bool]) -> None:
        self._source = source
        self._may_read = may_read

    def revision(self) -> int:
        """Return the metadata revision; cheap."""
        return self._source.revision()

    def tables(self) -> Tables:
        """Return the visible files of the readable datasources, all from one revision.

        Raises:
            Unavailable: As `listed_tables`.
        """
        return readable_tables(listed_tables(self._source), self._may_read)

    def feeders(self, datasource: str) -> Sequence[Feeder]:
        """Return the supervisors of a readable datasource, whose name may differ in case."""
        found = self._source.feeders(datasource)
        return [one for one in found if self._may_read(one.datasource)]

    def is_dropped(self, datasource: str) -> bool:
        """Return whether a readable datasource has segments, but no used ones."""
        return self._may_read(datasource) and self._source.is_dropped(datasource)

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        """Return the projections of a readable datasource, possibly some seconds old."""
        return self._source.projections(datasource) if self._may_read(datasource) else ()

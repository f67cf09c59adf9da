"""Projections of datasources as plans, resolved against the current columns.

Owns the cache of plans between queries. Thread-safe; concurrent resolutions have the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.column_case import twins_in
from penstock.core.errors import PenstockError
from penstock.segments.layout import projection_file, projection_folder
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.tables.columns import union_columns
from penstock.spark.tables.model import Columns, TableFile, Tables, TableSource

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import Declared

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """The projections of a datasource.

    Attributes:
        files: The visible files.
        declared: The declarations.
        columns: The columns of all files together.
        plans: Plans that can be made, in the order of the specs.
        unresolved: Names of projections without a plan.
    """

    files: tuple[TableFile, ...]
    declared: Sequence[Declared]
    columns: Columns
    plans: tuple[ProjectionPlan, ...]
    unresolved: tuple[str, ...]


class KnownProjections:
    """Resolver of the projections of datasources.

    Args:
        source: Source of the declarations.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._known: dict[str, Known] = {}

    def of(self, datasource: str, files: tuple[TableFile, ...]) -> Known | None:
        """Return the projections of a datasource with these visible files; None if it has none."""
        try:
            declared = self._source.projections(datasource)
        except PenstockError as error:
            logger.debug("projections of %s cannot be read: %s", datasource, error)
            return None
        if not declared or not files:
            self._known.pop(datasource, None)
            return None
        known = self._known.get(datasource)
        if known is not None and known.declared == declared:
            if known.files is files:
                return known
            columns = union_columns(files)
            if columns == known.columns:
                known = Known(files, declared, columns, known.plans, known.unresolved)
                self._known[datasource] = known
                return known
        columns = union_columns(files)
        # Projections ignore the case of names, so datasources with twins have none.
        plans = () if twins_in(n for n, _ in columns) else _resolved(declared, columns)
        missing = {one.name for one in declared} - {plan.name for plan in plans}
        known = Known(files, declared, columns, plans, tuple(sorted(missing)))
        self._known[datasource] = known
        return known

    def needed(self, tables: Tables) -> Mapping[str, set[str]]:
        """Return the folders of all plans, with the file names that belong to visible files."""
        for gone in self._known.keys() - tables.files.keys():
            self._known.pop(gone, None)
        found: dict[str, set[str]] = {}
        for datasource, files in tables.files.items():
            if (known := self.of(datasource, files)) is None:
                continue
            names = {projection_file(file.path) for file in files if not file.announced}
            for plan in known.plans:
                # Two datasources whose names differ by a colon may share one folder.
                found.setdefault(projection_folder(datasource, plan.digest), set()).update(names)
        return found


def _resolved(declared: Sequence[Declared], columns: Columns) -> tuple[ProjectionPlan, ...]:
    # Imported here: most datasources have no projections, and do not need their models.
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - said above

    from penstock.indexing.specs.rows.projections import Projection  # noqa: PLC0415 - as above
    from penstock.spark.projections.resolving import plans  # noqa: PLC0415 - as above

    adapter = TypeAdapter(Projection)
    found: list[ProjectionPlan] = []
    for one in declared:
        try:
            projection = adapter.validate_python(one.projection)
        except ValidationError as error:
            # Written by a later release.
            logger.debug("projection %s cannot be read: %s", one.name, error)
            continue
        found += plans([projection], frozenset(one.metrics), columns)
    return tuple(found)

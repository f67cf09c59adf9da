"""The tables that a query reads, as a test gives them; nobody brings rows to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
from penstock.spark.tables import Feeder, TableFile, Tables


@dataclass
class GivenTables:
    """A source of tables.

    Attributes:
        files: Those that are visible, by datasource.
        number: The revision that they are of.
        declared: Projections, by datasource.
    """

    files: dict[str, tuple[TableFile, ...]] = field(default_factory=dict)
    number: int = 1
    declared: dict[str, tuple[DeclaredProjections, ...]] = field(default_factory=dict)

    def revision(self) -> int:
        return self.number

    def tables(self) -> Tables:
        return Tables(self.number, self.files)

    def feeders(self, datasource: str) -> Sequence[Feeder]:
        return ()

    def is_dropped(self, datasource: str) -> bool:
        return False

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        return self.declared.get(datasource, ())

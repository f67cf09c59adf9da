"""Tables of SQL and of the data source: the visible files of each datasource, and reading them.

`table_files` has the records, `table_columns` the rule that makes one table of many files.
`visible_files` and `remote_reads` return the visible files; `parquet_reader` reads them without the
JVM. Only `penstock.segments` decides visibility.
"""

from penstock.spark.tables.table_files import (
    Feeder,
    TableFile,
    Tables,
    TableSource,
    reason_without_rows,
    why_empty,
)

__all__ = ["Feeder", "TableFile", "TableSource", "Tables", "reason_without_rows", "why_empty"]

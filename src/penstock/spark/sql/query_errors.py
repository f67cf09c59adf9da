"""Errors of Spark in terms of the user's statement, files and datasources.

Owns the patterns by which Spark's messages are recognised. `service` decides which queries are
tried again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.core.errors import Conflict, PenstockError, StorageUnavailable
from penstock.indexing.engine import EngineFailure
from penstock.segments.layout import deep_storage_of
from penstock.segments.local_files import folder_missing
from penstock.spark.connect.spark_sessions import SparkRefusal, message_of
from penstock.spark.sql.case_tables import CaseTables
from penstock.spark.sql_guard import error_without_places, place_in, relocated_error
from penstock.spark.tables import TableFile, TableSource, why_empty
from penstock.spark.views import damaged

FILE_GONE: Final = re.compile(
    r"FILE_NOT_EXIST|FILE_NOT_FOUND|PATH_NOT_FOUND|FileNotFoundException|READ_CURRENT_FILE_NOT_FOUND"
)
MISSING_PATH: Final = re.compile(
    r"(?:Path does not exist:|File) (?:file:)?/*(/.{1,4096}?\.parquet)"
)
# In this message Spark writes the path as a URL.
DAMAGED_FILE: Final = re.compile(r"FAILED_READ_FILE.{0,200}?reading file (\S{1,8192}\.parquet)")
_MISSING_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\][^`]*`((?:[^`]|``)+)` cannot")


def spark_message(error: BaseException) -> str:
    """Return Spark's message without the names of its classes."""
    said: BaseException = error
    while said.__cause__ is not None:
        said = said.__cause__
    return f"{error}\n{message_of(said)}"


def unreadable_file(path: str, what: str, file: TableFile | None) -> PenstockError:
    """Return the error of a query that needs a file which Spark cannot read.

    Args:
        path: The path of the file.
        what: The problem of the file, such as "is missing".
        file: The file, if queries that begin now read it.
    """
    root = deep_storage_of(path)
    if root is not None and not Path(root).is_dir():
        return StorageUnavailable(f"{folder_missing(root)}. The query needs {path} from there")
    announced = file is not None and file.announced
    return EngineFailure(damaged(path, what, announced=announced))


def explained_refusal(
    error: SparkRefusal,
    query: str,
    case_variants: CaseTables | None,
    source: TableSource,
    *,
    is_sent: bool,
) -> str | Conflict:
    """Return Spark's error for a query, in terms of the user's text.

    It is a `Conflict` if a datasource of the query is known but has no rows yet.

    Args:
        error: The error.
        query: The query that Spark got; empty for a command, whose text Penstock composes.
        case_variants: Datasources with columns that differ only in case.
        source: The tables that exist for the query.
        is_sent: Whether lines and columns of the query are those of the user's statement.
    """
    if query and is_sent:
        text = relocated_error(str(error), query)
    else:
        text = error_without_places(str(error), query)
    if "TABLE_OR_VIEW_NOT_FOUND" not in text:
        return case_variants.explained(text) if case_variants and case_variants.are_read else text
    missing = _MISSING_TABLE.search(text)
    tables = source.tables()
    if missing:
        name = missing[1].replace("``", "`")
        alike = [one for one in tables.files if one.lower() == name.lower()]
        if len(alike) > 1:
            names = " and ".join(f'"{one}"' for one in alike)
            return (
                f"{names} differ only in case, which SQL does not distinguish: ingest one of"
                " them under another name"
            )
        if (
            case_variants
            and case_variants.are_read
            and (meant := case_variants.explained_table(name, tables.files))
        ):
            return meant
        if why := why_empty(source, name):
            # The statement is correct, and may be repeated unchanged.
            return Conflict(why)
    known = tables.known_names()
    first = text.split("\n", 1)[0].split(". Verify", 1)[0]
    where = place_in(text)
    place = f" ({where})" if where else ""
    return f"{first}{place}. Datasources with data: {known}"

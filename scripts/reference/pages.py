"""List of the generated files, with the function that returns the text of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference import (
    cli,
    compatibility,
    configuration,
    druid_sql_functions,
    errors,
    events,
    flow_files,
    http_api,
    metrics,
    openapi,
    processors,
    python_client,
    python_processors,
    specs,
    sql,
    sql_metadata_tables,
    transitions,
)

ROOT: Final = Path(__file__).parents[2]
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/contributing/transitions.md": transitions.page,
    "docs/reference/cli.md": cli.page,
    "docs/reference/configuration.md": configuration.page,
    "docs/reference/druid-compatibility.md": compatibility.druid_page,
    "docs/reference/druid-sql-functions.md": druid_sql_functions.page,
    "docs/reference/errors.md": errors.page,
    "docs/reference/events.md": events.page,
    "docs/reference/flow-files.md": flow_files.page,
    "docs/reference/http-api.md": http_api.page,
    "docs/reference/metrics.md": metrics.page,
    "docs/reference/nsq-compatibility.md": compatibility.nsq_page,
    "docs/reference/openapi.json": openapi.text,
    "docs/reference/processors.md": processors.page,
    "docs/reference/python-client.md": python_client.page,
    "docs/reference/python-processors.md": python_processors.page,
    "docs/reference/specs.md": specs.page,
    "docs/reference/sql.md": sql.page,
    "docs/reference/sql-metadata-tables.md": sql_metadata_tables.page,
    # The router serves this copy at /openapi.json.
    "src/penstock/services/api/openapi.json": openapi.text,
}

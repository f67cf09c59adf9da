"""List of the generated files, with the function that returns the text of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference import cli, configuration, http_api, openapi, processors, specs, transitions

ROOT: Final = Path(__file__).parents[2]
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/contributing/transitions.md": transitions.page,
    "docs/reference/cli.md": cli.page,
    "docs/reference/configuration.md": configuration.page,
    "docs/reference/http-api.md": http_api.page,
    "docs/reference/openapi.json": openapi.text,
    "docs/reference/processors.md": processors.page,
    "docs/reference/specs.md": specs.page,
    # The router serves this copy at /openapi.json.
    "src/penstock/services/api/openapi.json": openapi.text,
}

"""Replacements for paths of Druid that Penstock does not support.

Owns the texts; docs/druid-compatibility.md lists the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_COORDINATOR: Final = "/druid/coordinator/v1"
_COMPACTION: Final = "use the paths below /druid/indexer/v1/compaction"
_LOADING: Final = "segments are read in place, so nothing is loaded: leave the request out"

_PATHS: Final[Mapping[str, str]] = {
    "/druid/v2": "use SQL: POST it to /druid/v2/sql",
    "/druid/v2/datasources": "use SHOW TABLES in SQL, or GET /druid/coordinator/v1/datasources",
    "/druid/indexer/v1/sampler": "submit the spec for a datasource to test it, and read the"
    " report of the task",
    f"{_COORDINATOR}/rules": f"POST rules of all datasources to {_COORDINATOR}/rules/_default",
    f"{_COORDINATOR}/config": "a coordinator has no settings here: leave it out",
}
_BELOW: Final[Mapping[str, str]] = {
    "/druid/v2/sql/statements": "POST queries to /druid/v2/sql, and what writes to"
    " /druid/v2/sql/task",
    f"{_COORDINATOR}/compaction": _COMPACTION,
    f"{_COORDINATOR}/config/compaction": _COMPACTION,
    f"{_COORDINATOR}/loadqueue": _LOADING,
    f"{_COORDINATOR}/tiers": _LOADING,
    f"{_COORDINATOR}/lookups": "there are no lookups: join a datasource in SQL",
}


def instead_of(path: str) -> str:
    """Return the replacement of a path; empty if there is none."""
    if path in _PATHS:
        return _PATHS[path]
    return next((mend for top, mend in _BELOW.items() if f"{path}/".startswith(f"{top}/")), "")

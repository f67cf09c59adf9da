"""The projections of a datasource, from all specs that declare some. As unparsed JSON.

Supervisors keep theirs in their specs. Those of batch tasks are stored in the metadata's
configuration, by datasource: `config_name`. Answers do not depend on them, so a lost or outdated
entry only costs speed. Imports no models, so that a process without projections does not load them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DECLARED_MAX: Final = 100
"""Maximum number of projections of batch tasks that a datasource keeps; the newest."""


@dataclass(frozen=True, slots=True)
class DeclaredProjections:
    """A projection, with the names of the metrics of its spec.

    Attributes:
        projection: In the form of a spec.
        metrics: The names of the metrics in `metricsSpec`.
    """

    projection: Mapping[str, object]
    metrics: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the projection."""
        return str(self.projection.get("name", ""))


def config_name(datasource: str) -> str:
    """Return the configuration name for a datasource's projections of batch tasks."""
    return f"projections/{datasource}"


def merged(
    known: Iterable[DeclaredProjections], more: Iterable[DeclaredProjections]
) -> tuple[DeclaredProjections, ...]:
    """Return projections with unique names, newest last; a later one replaces an earlier one."""
    found = {one.name: one for one in known}
    for one in more:
        found.pop(one.name, None)
        found[one.name] = one
    return tuple(found.values())


def dump(declared: Sequence[DeclaredProjections]) -> bytes:
    """Return the bytes that `load` parses."""
    entries = [
        {"projection": one.projection, "metrics": list(one.metrics)}
        for one in declared[-DECLARED_MAX:]
    ]
    return json.dumps({"projections": entries}, sort_keys=True).encode()


def load(stored: bytes | None) -> tuple[DeclaredProjections, ...]:
    """Parse the bytes of `dump`; parts with another form are skipped."""
    try:
        value: object = json.loads(stored or b"{}")
    except ValueError:
        return ()
    entries = value.get("projections") if isinstance(value, dict) else None
    return tuple(
        DeclaredProjections(one["projection"], _texts(one.get("metrics")))
        for one in (entries if isinstance(entries, list) else ())
        if isinstance(one, dict) and isinstance(one.get("projection"), dict)
    )


def of_schema(schema: Mapping[str, object]) -> tuple[DeclaredProjections, ...]:
    """Return the projections of a `dataSchema`, or of another object with its fields."""
    projections, metrics = schema.get("projections"), schema.get("metricsSpec")
    if not isinstance(projections, list):
        return ()
    listed = metrics if isinstance(metrics, list) else []
    names = _texts([one.get("name") for one in listed if isinstance(one, dict)])
    return tuple(DeclaredProjections(one, names) for one in projections if isinstance(one, dict))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()

"""The projections that a datasource has by now, wherever they were said. As JSON, unread.

Supervisors keep theirs in their specs. Those of batch tasks are kept under a name of the metadata's
configuration, by datasource: `config_name`. An answer is the same without, so what is lost or old
here costs speed alone. Imports no models: who has no projections reads none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DECLARED_MAX: Final = 100
"""How many projections of batch tasks a datasource keeps; the newest."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A projection, with the names of the metrics of the rows that it was said with.

    Attributes:
        projection: In the form that a spec has.
        metrics: What the spec's `metricsSpec` makes.
    """

    projection: Mapping[str, object]
    metrics: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.projection.get("name", ""))


def config_name(datasource: str) -> str:
    """Return under which name a datasource's projections of batch tasks are kept."""
    return f"projections/{datasource}"


def merged(known: Iterable[Declared], more: Iterable[Declared]) -> tuple[Declared, ...]:
    """Return projections of different names, newest last; of two of one name the later one."""
    found = {one.name: one for one in known}
    for one in more:
        found.pop(one.name, None)
        found[one.name] = one
    return tuple(found.values())


def dump(declared: Sequence[Declared]) -> bytes:
    """Return what `load` reads."""
    entries = [
        {"projection": one.projection, "metrics": list(one.metrics)}
        for one in declared[-DECLARED_MAX:]
    ]
    return json.dumps({"projections": entries}, sort_keys=True).encode()


def load(stored: bytes | None) -> tuple[Declared, ...]:
    """Read what `dump` gave; of other shapes what can be read."""
    try:
        value: object = json.loads(stored or b"{}")
    except ValueError:
        return ()
    entries = value.get("projections") if isinstance(value, dict) else None
    return tuple(
        Declared(one["projection"], _texts(one.get("metrics")))
        for one in (entries if isinstance(entries, list) else ())
        if isinstance(one, dict) and isinstance(one.get("projection"), dict)
    )


def of_schema(schema: Mapping[str, object]) -> tuple[Declared, ...]:
    """Return the projections of a `dataSchema`, or of what else has its fields."""
    projections, metrics = schema.get("projections"), schema.get("metricsSpec")
    if not isinstance(projections, list):
        return ()
    listed = metrics if isinstance(metrics, list) else []
    names = _texts([one.get("name") for one in listed if isinstance(one, dict)])
    return tuple(Declared(one, names) for one in projections if isinstance(one, dict))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()

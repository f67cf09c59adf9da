"""The reference page of the docs: every model of a spec with its fields, types, defaults, meanings.

    python tests/spec_page.py

writes `docs/spec-reference.md`. `spec_meanings` has the texts.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.indexing.specs.batch.batch_task_specs import KillSpec, NoopSpec
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.compaction import (
    ClusterCompaction,
    CompactionConfig,
    CompactionSupervisorSpec,
)
from penstock.indexing.specs.retention_rules import RuleList
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.supervisor_spec import SupervisorSpec
from spec_meanings import IGNORED, MEANINGS, OURS

ROOTS: Final[tuple[type[SpecModel], ...]] = (
    SupervisorSpec,
    IndexParallelSpec,
    CompactSpec,
    KillSpec,
    NoopSpec,
    SqlIngestSpec,
    CompactionSupervisorSpec,
    CompactionConfig,
    ClusterCompaction,
    RuleList,
)
PAGE: Final = Path(__file__).parents[1] / "docs" / "spec-reference.md"
_HEAD: Final = """\
# Specs: every field

Made by `python tests/spec_page.py`. How the parts fit together is described in
[the ingestion spec](ingestion-spec.md), and the differences from Druid in
[Druid compatibility](druid-compatibility.md). Fields marked with * are not Druid's.
"""
_PLAIN: Final = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true`, `false`",
    type(None): "null",
}
# Validators of single values, whose names describe a type better than text or number.
_CHECKED: Final = {
    "_duration": "duration",
    "_capped_duration": "duration",
    "_offset": "period, `PT0S` too",
    "_topic": "name of a topic",
    "_time": "time",
    "_interval": "interval",
    "_period": "period",
    "_expression": "expression",
    "_as_text": "granularity",
    "_check_granularity": "granularity",
    "check_datasource_name": "name",
    "check_table_name": "name",
    "check_supervisor_id": "name",
    "_check_column_name": "name",
    "check_task_id": "name",
    "_check_id": "name",
    "_check_context": "object",
}


def reference_page() -> str:
    """Return docs/spec-reference.md."""
    return "\n".join([_HEAD, *(section(model) for model in models())])


def models() -> list[type[SpecModel]]:
    """Return every model of a spec, each after the first model that contains it."""
    found: dict[type[SpecModel], None] = {}

    def walk(model: type[SpecModel]) -> None:
        if model not in found:
            found[model] = None
            for field in model.model_fields.values():
                for inner in _models_in(field.annotation):
                    walk(inner)

    for root in ROOTS:
        walk(root)
    return list(found)


def section(model: type[SpecModel]) -> str:
    """Return the section of the page about one model."""
    lines = [f"## {model.__name__}", "", " ".join(inspect.cleandoc(model.__doc__ or "").split())]
    lines += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        alias = field.alias or name
        mark = "*" if f"{model.__name__}.{alias}" in OURS else ""
        cells = (f"`{alias}`{mark}", _type(field), _default(model, name), meaning(model, alias))
        lines.append(f"| {' | '.join(cells)} |")
    if model.without_effect:
        names = ", ".join(f"`{name}`" for name in sorted(model.without_effect))
        lines += ["", f"Accepted, without any effect: {names}."]
        reasons = [
            f"- `{name}`: {IGNORED[name]}"
            for name in sorted(model.without_effect)
            if name in IGNORED
        ]
        lines += ["", "Of these:", "", *reasons] if reasons else []
    if model.repeated:
        texts = ", ".join(f"`{name}` for `{other}`" for name, other in model.repeated.items())
        lines += ["", f"May replace another field, or must be equal to it: {texts}."]
    if model.unsupported:
        lines += ["", "Refused, with the remedy:", ""]
        lines += [f"- `{name}`: {_remedy(model, name)}" for name in sorted(model.unsupported)]
    return "\n".join([*lines, ""])


def meaning(model: type[SpecModel], alias: str) -> str:
    """Return the meaning of a field; a `KeyError` for a field without a description."""
    return MEANINGS.get(f"{model.__name__}.{alias}") or MEANINGS[alias]


def _remedy(model: type[SpecModel], name: str) -> str:
    remedy = model.unsupported[name]
    if name not in model.druid_defaults:
        return remedy
    ignored = json.dumps(model.druid_defaults[name])
    return f"{remedy}; `{ignored}`, which has no effect, is accepted"


def _type(field: FieldInfo) -> str:
    checked = _checked(field.metadata)
    return checked or _type_of(field.annotation)


def _type_of(annotation: object) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _checked(arguments[1:]) or _type_of(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments if one != "")
    if origin in {Union, types.UnionType}:
        texts = dict.fromkeys(_type_of(one) for one in arguments if one is not type(None))
        return " or ".join(one for one in texts if one)
    if origin is tuple:
        return f"list of {_type_of(arguments[0])}"
    if origin is dict:
        return f"object of {_type_of(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _PLAIN.get(annotation, "any") if isinstance(annotation, type) else "any"


def _checked(metadata: object) -> str | None:
    for one in metadata if isinstance(metadata, list | tuple) else ():
        if isinstance(one, AfterValidator | BeforeValidator):
            name: object = getattr(one.func, "__name__", None)
            if name in _CHECKED:
                return _CHECKED[str(name)]
    return None


def _default(model: type[SpecModel], name: str) -> str:
    field = model.model_fields[name]
    if field.default_factory is not None:
        return "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None or field.default == "":
        return "none"
    if isinstance(field.default, SpecModel):
        return "all defaults"
    shown: object = field.default
    if not field.exclude:
        written = model.model_construct(None, **{name: field.default})
        # Some fields are left out if they have their defaults.
        shown = written.model_dump(mode="json", include={name}, warnings=False).get(name, shown)
    return f"`{json.dumps(shown)}`"


def _models_in(annotation: object) -> Iterator[type[SpecModel]]:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


if __name__ == "__main__":
    PAGE.write_text(reference_page())

"""Page of the specs: every field of every model, with its type, default and meaning.

`spec_meanings` has the meanings, `spec_groups` the headings and examples.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.indexing.overlord.runner.worker_config import WorkerConfig
from penstock.indexing.specs.batch.batch_task_specs import KillSpec, NoopSpec
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.compaction import (
    ClusterCompaction,
    CompactionConfig,
    CompactionSupervisorSpec,
)
from penstock.indexing.specs.druid_expressions.functions import (
    REFUSED,
    SPECIAL,
    TEMPLATES,
    TIME_FUNCTIONS,
)
from penstock.indexing.specs.lookup_spec import LookupSpec
from penstock.indexing.specs.retention_rules import RuleList
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.supervisor_spec import SupervisorSpec
from reference.markdown import fence, head, sentence, slug, table, written
from reference.spec_groups import CONTEXT, EXAMPLES, GROUPS, TITLES, Group
from reference.spec_meanings import IGNORED, MEANINGS, OURS

ROOTS: Final[tuple[type[SpecModel], ...]] = (
    SupervisorSpec,
    IndexParallelSpec,
    CompactSpec,
    KillSpec,
    NoopSpec,
    SqlIngestSpec,
    SparkWriteSpec,
    CompactionSupervisorSpec,
    CompactionConfig,
    ClusterCompaction,
    RuleList,
    LookupSpec,
    WorkerConfig,
)
_ABOUT: Final = """\
Every field of supervisors, tasks and their parts: its type, its default and its meaning. A spec is
JSON or YAML. Penstock checks all of a spec when it is submitted, and reports every mistake with its
place.

A field marked with * exists only in Penstock; all others have the names and meanings of Druid.
[Druid compatibility](druid-compatibility.md) lists the differences.
"""
# Of more alternatives the type names the part of the page.
_LISTED_MAX: Final = 3
_NOUNS: Final = {
    "Filters": "filter",
    "Input of batch tasks": "input source",
    "Input formats": "input format",
    "Tuning of batch tasks": "partitionsSpec",
    "Retention rules": "rule",
}
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
    "_name": "name",
    "_check_id": "name",
    "_check_context": "object",
}


def page() -> str:
    """Return docs/reference/specs.md."""
    lines = [head("Specs", "the models of specs", _ABOUT), *_contents()]
    for group in GROUPS:
        lines += ["", f"## {group.title}", "", group.about]
        for name in group.models:
            lines += section(_MODELS[name])
        if group.notes:
            lines += ["", *written(group.notes)]
    return "\n".join((*lines, *_contexts(), *_expressions(), *_limits())) + "\n"


def _contents() -> Iterator[str]:
    rows = [
        (f"[{group.title}](#{slug(group.title)})", sentence(group.about.partition(". ")[0]))
        for group in GROUPS
    ]
    more = [
        ("[Context](#context)", "Settings of tasks that are not part of their spec."),
        ("[Expressions](#expressions)", "Expressions of transforms and filters."),
        ("[Limits](#limits)", "Maximum sizes of specs and of input."),
    ]
    yield from table(("part", "contents"), [*rows, *more])


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


def section(model: type[SpecModel]) -> Iterator[str]:
    """Yield the lines of the section about one model."""
    title = TITLES[model.__name__]
    yield from ("", f"### {title}", "", _about(model))
    if example := EXAMPLES.get(model.__name__):
        yield from fence("json", example)
    rows = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        mark = "*" if f"{model.__name__}.{alias}" in OURS else ""
        about = sentence(meaning(model, alias))
        rows.append((f"`{alias}`{mark}", _type(field), _default(model, name), about))
    yield from table(("field", "type", "default", "meaning"), rows)
    yield from _without_effect(model)
    if model.repeated:
        texts = ", ".join(f"`{name}` for `{other}`" for name, other in model.repeated.items())
        yield from ("", f"Other names that are accepted: {texts}.")
    if model.unsupported:
        refused = [(f"`{name}`", sentence(_remedy(model, name))) for name in model.unsupported]
        yield from table(("refused field", "what to do instead"), sorted(refused))


def _without_effect(model: type[SpecModel]) -> Iterator[str]:
    names = sorted(model.without_effect)
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        yield from ("", f"Accepted without effect: {listed}.")
    yield from table(
        ("field without effect", "reason"),
        [(f"`{name}`", sentence(IGNORED[name])) for name in names if name in IGNORED],
    )


def _about(model: type[SpecModel]) -> str:
    text = " ".join(inspect.cleandoc(model.__doc__ or "").replace("``", "`").split())
    return re.sub(r"`([a-z_]+)`", lambda found: f"`{_ALIASES.get(found[1], found[1])}`", text)


def _contexts() -> Iterator[str]:
    yield from ("", "## Context", "")
    yield (
        "A task's `context` may have any keys. Penstock checks these, and keeps all others"
        " unchanged. The option `--task-context` sets defaults for all tasks."
    )
    rows = [(f"`{name}`", one.value, one.default, one.meaning) for name, one in CONTEXT.items()]
    yield from table(("key", "type", "default", "meaning"), rows)


def _expressions() -> Iterator[str]:
    yield from ("", "## Expressions", "", *written("expressions"))
    rows = [
        (f"`{name}`", ", ".join(f"`{text}`" for text in dict.fromkeys(one.texts.values())))
        for name, one in sorted(TEMPLATES.items())
    ]
    yield from ("", "### Functions of Druid's language")
    yield from table(("function", "translation; `{0}` is the first argument"), rows)
    listed = ", ".join(f"`{name}`" for name in sorted((*TIME_FUNCTIONS, *SPECIAL)))
    yield from ("", f"Also translated, depending on their arguments: {listed}.")
    yield from table(
        ("refused function", "what to do instead"),
        [(f"`{name}`", sentence(text)) for name, text in sorted(REFUSED.items())],
    )


def _limits() -> Iterator[str]:
    yield from ("", "## Limits", "", *written("limits"))


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
        group = _group_of(arguments)
        if group is not None:
            return f"[{_NOUNS[group.title]}](#{slug(group.title)})"
        texts = dict.fromkeys(_type_of(one) for one in arguments if one is not type(None))
        return " or ".join(one for one in texts if one)
    if origin is tuple:
        return f"list of {_type_of(arguments[0])}"
    if origin is dict:
        return f"object of {_type_of(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        title = TITLES[annotation.__name__]
        return f"[{title.replace('`', '')}](#{slug(title)})"
    return _PLAIN.get(annotation, "any") if isinstance(annotation, type) else "any"


def _group_of(arguments: Sequence[object]) -> Group | None:
    """Return the part of the page with all of the models, if they are many."""
    names = (
        {one.__name__ for found in arguments for one in _models_in(found)}
        if all(any(_models_in(one)) or one is type(None) for one in arguments)
        else set()
    )
    groups = [group for group in GROUPS if names & group.models.keys()]
    return groups[0] if len(names) > _LISTED_MAX and len(groups) == 1 else None


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


_MODELS: Final[Mapping[str, type[SpecModel]]] = {one.__name__: one for one in models()}
# Docstrings name fields as Python does.
_ALIASES: Final[Mapping[str, str]] = {
    name: field.alias or name
    for model in _MODELS.values()
    for name, field in model.model_fields.items()
}

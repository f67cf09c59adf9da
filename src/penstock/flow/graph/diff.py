"""Differences between two flows, and the processors that must stop for them.

Owns the comparison, by ids. Does not own applying the changes, nor the check that a connection to
remove is empty (`controller`).

Invariants: a flow does not differ from itself. Unchanged components are not listed, so they
continue to run. A change of a parameter is a change of every component that refers to it. Values of
sensitive parameters are not in flows, so they are not in changes either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from penstock.flow.graph.flow_index import (
    ComponentKind,
    FlowIndex,
    PlacedComponent,
    PlacedConnection,
    PlacedGroup,
)
from penstock.flow.graph.flow_model import Flow, FlowModel, Parameter
from penstock.flow.graph.parameters import Scopes, references, used_texts

_Placed: TypeAlias = PlacedComponent | PlacedConnection | PlacedGroup

# Fields that can change while the processor runs; all others are read when it starts.
_WHILE_RUNNING: Final = {"name", "comments", "position", "bulletin_level"}
_OF_GROUPS: Final = {"comments", "position", "max_concurrent_tasks", "version"}
_ENDS: Final = {"from", "to", "relationships"}


class ChangeKind(StrEnum):
    """Kind of a change."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """Field of a component that differs.

    Attributes:
        field: Its name, such as ``properties.Batch Size``.
        old: Previous value as text; empty if the field did not exist.
        new: New value as text; empty if the field no longer exists.
    """

    field: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class FlowChange:
    """Change of one component.

    Attributes:
        kind: Kind of the change.
        component: Kind of the component.
        id: Its id.
        name: Its names from the root group on, in the new flow if it exists there.
        fields: Fields that differ, for a changed component.
        stops: Ids of the processors that must not run while this change is applied.
        must_be_empty: Whether it is a connection whose FlowFiles would be lost.
    """

    kind: ChangeKind
    component: ComponentKind
    id: str
    name: str
    fields: tuple[FieldChange, ...] = ()
    stops: tuple[str, ...] = ()
    must_be_empty: bool = False

    def lines(self) -> Iterator[str]:
        """Return the change as text: one line, and one for each field that differs."""
        sign = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}[self.kind]
        note = " (it must be empty)" if self.must_be_empty else ""
        if self.kind is ChangeKind.CHANGED and self.stops:
            note = " (stops and starts again)"
        yield f"{sign} {self.component} {self.name}{note}"
        for change in self.fields:
            yield f"    {change.field}: {change.old or '(none)'} → {change.new or '(none)'}"


def diff(old: Flow, new: Flow) -> list[FlowChange]:
    """Return the change of each component: first removed, then changed, then added ones.

    Args:
        old: The current flow.
        new: The new flow.
    """
    before, after = FlowIndex.of(old), FlowIndex.of(new)
    old_by_id, new_by_id = _by_id(before), _by_id(after)
    scopes = (Scopes(before), Scopes(after))
    removed = [_gone(placed) for id_, placed in reversed(old_by_id.items()) if id_ not in new_by_id]
    changed = [
        change
        for id_, placed in new_by_id.items()
        if id_ in old_by_id and (change := _changed(old_by_id[id_], placed, scopes)) is not None
    ]
    added = [_new(placed) for id_, placed in new_by_id.items() if id_ not in old_by_id]
    return [*removed, *changed, *added]


def describe(changes: list[FlowChange]) -> str:
    """Return changes as text, one line for each change and field; empty without changes."""
    return "\n".join(line for change in changes for line in change.lines())


def _by_id(index: FlowIndex) -> dict[str, _Placed]:
    found: dict[str, _Placed] = {}
    placed: _Placed
    for part in (index.groups, index.components, index.connections):
        for placed in part:
            found.setdefault(placed.id, placed)
    return found


def _kind(placed: _Placed) -> ComponentKind:
    if isinstance(placed, PlacedGroup):
        return ComponentKind.GROUP
    return ComponentKind.CONNECTION if isinstance(placed, PlacedConnection) else placed.kind


def _name(placed: _Placed) -> str:
    if isinstance(placed, PlacedComponent) and placed.processor is not None:
        return f"{placed} ({placed.processor.type})"
    return str(placed)


def _ends(placed: PlacedConnection) -> tuple[str, ...]:
    """Return the processors at the ends of a connection."""
    ends = (placed.source, placed.destination)
    found = [end.id for end in ends if end is not None and end.processor is not None]
    return tuple(dict.fromkeys(found))


def _gone(placed: _Placed) -> FlowChange:
    is_connection = isinstance(placed, PlacedConnection)
    return FlowChange(
        ChangeKind.REMOVED,
        _kind(placed),
        placed.id,
        _name(placed),
        stops=_stops(placed),
        must_be_empty=is_connection,
    )


def _new(placed: _Placed) -> FlowChange:
    # A processor reads at its start where its relationships lead.
    stops = _stops(placed) if isinstance(placed, PlacedConnection) else ()
    return FlowChange(ChangeKind.ADDED, _kind(placed), placed.id, _name(placed), stops=stops)


def _stops(placed: _Placed) -> tuple[str, ...]:
    if isinstance(placed, PlacedConnection):
        return _ends(placed)
    is_processor = isinstance(placed, PlacedComponent) and placed.processor is not None
    return (placed.id,) if is_processor else ()


def _changed(old: _Placed, new: _Placed, scopes: tuple[Scopes, Scopes]) -> FlowChange | None:
    fields_before, fields_after = _facts(old), _facts(new)
    fields = [
        FieldChange(name, fields_before.get(name, ""), fields_after.get(name, ""))
        for name in {**fields_before, **fields_after}
        if fields_before.get(name, "") != fields_after.get(name, "")
    ]
    fields.extend(_parameters_differ(old, new, scopes))
    if isinstance(old, PlacedConnection) and isinstance(new, PlacedConnection):
        fields.extend(_ends_differ(old, new))
    if not fields:
        return None
    stops: tuple[str, ...] = ()
    names = {change.field for change in fields}
    if isinstance(old, PlacedConnection) and isinstance(new, PlacedConnection):
        if names & _ENDS:
            stops = tuple(dict.fromkeys((*_ends(old), *_ends(new))))
    elif names - _WHILE_RUNNING:
        stops = _stops(new) or _stops(old)
    return FlowChange(ChangeKind.CHANGED, _kind(new), new.id, _name(new), tuple(fields), stops)


def _ends_differ(old: PlacedConnection, new: PlacedConnection) -> Iterator[FieldChange]:
    """Compare the ends of a connection; a renamed component is still the same end."""
    for field, before, after in (
        ("from", old.source, new.source),
        ("to", old.destination, new.destination),
    ):
        if (before and before.id) != (after and after.id):
            yield FieldChange(field, str(before or ""), str(after or ""))


def _facts(placed: _Placed) -> dict[str, str]:
    """Return the fields of a component as text."""
    if isinstance(placed, PlacedConnection):
        return _texts(_own_fields(placed.connection), skip={"id", "source", "destination"})
    if isinstance(placed, PlacedGroup):
        return {"name": str(placed)} | _texts(_own_fields(placed.group), only=_OF_GROUPS)
    facts = _texts(_own_fields(placed.component), skip={"id", "properties", "retry"})
    facts |= {"name": str(placed), "kind": placed.kind}
    if (processor := placed.processor) is not None:
        facts["schedule"] = processor.schedule.short() or _text(processor.schedule)
        facts |= _texts(processor.properties, prefix="properties.")
        facts |= _texts(processor.retry, prefix="retry.")
    return facts


def _own_fields(model: FlowModel) -> dict[str, object]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def _texts(
    fields: Mapping[str, object],
    *,
    prefix: str = "",
    skip: AbstractSet[str] = frozenset(),
    only: AbstractSet[str] | None = None,
) -> dict[str, str]:
    return {
        f"{prefix}{name}": _text(value)
        for name, value in fields.items()
        if name not in skip and (only is None or name in only) and value not in (None, ())
    }


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, FlowModel):
        return ", ".join(f"{name} {_text(field)}" for name, field in _own_fields(value).items())
    return repr(value) if value.__class__ is str else str(value)


def _parameters_differ(
    old: _Placed, new: _Placed, scopes: tuple[Scopes, Scopes]
) -> Iterator[FieldChange]:
    """Compare the old and new values of the parameters that a component names."""
    before, after = _meanings(old, scopes[0]), _meanings(new, scopes[1])
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield FieldChange(f"parameter {name}", _meaning(before[name]), _meaning(after[name]))


def _meanings(placed: _Placed, scopes: Scopes) -> dict[str, Parameter | None]:
    if isinstance(placed, PlacedGroup):
        return {}
    if isinstance(placed, PlacedConnection):
        texts = [placed.connection.expiration]
    elif placed.processor is not None:
        texts = [text for _, text in used_texts(placed.processor)]
    else:
        return {}
    scope = scopes.of(placed.group)
    found = {name: scope.find(name) for text in texts for name in references(text)}
    return {name: one.parameter if one is not None else None for name, one in found.items()}


def _meaning(parameter: Parameter | None) -> str:
    if parameter is None:
        return ""
    if parameter.secret is not None:
        return f"secret {parameter.secret}"
    if parameter.env is not None:
        return f"environment variable {parameter.env}"
    return f"file {parameter.file}" if parameter.file is not None else repr(parameter.value)

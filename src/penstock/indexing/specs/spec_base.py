"""Base of the models of specs: Druid's JSON names, and no field ignored silently.

An unknown field is a mistake. A field of Druid that is not supported is refused with a remedy. A
field that does not apply here (such as one that tunes a JVM's memory) is accepted without effect.
The models list both, so that the reference page can print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest

_NOTHING: Final[tuple[object, ...]] = (None, [])

Found = list[tuple[tuple[str | int, ...], object, str]]
"""Mistakes of one model: (place within it, value, message) each."""


class IgnoredValue(Enum):
    """Types of the values of fields that have no effect.

    A value of the wrong type is a mistake, perhaps meant for another field, and no other check
    would report it.
    """

    NUMBER = "must be a whole number"
    FLAG = "must be true or false"
    DURATION = 'write a duration, such as "PT30S"'
    OBJECT = "must be an object"
    ANY = ""


_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def _json_name(field: str) -> str:
    """Return the camelCase name of a field; Druid writes datasource as two words."""
    return "dataSource" if field == "datasource" else to_camel(field)


class SpecModel(BaseModel):
    """Base of the models of a spec: immutable, camelCase in JSON, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=_json_name,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    unsupported: ClassVar[Mapping[str, str]] = {}
    """Unsupported fields of Druid, refused unless they are empty, each with the remedy."""

    druid_defaults: ClassVar[Mapping[str, object]] = {}
    """The values of unsupported fields that Druid writes by default."""

    repeated: ClassVar[Mapping[str, str]] = {}
    """Fields of Druid that repeat another field: a copy may replace it, or must be equal."""

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {}
    """Fields of Druid that are accepted without effect; a value of the wrong type is refused."""

    kind_field: ClassVar[str] = "type"
    """The field that selects the model, if the model is one of a union."""

    @model_validator(mode="before")
    @classmethod
    def _drop_without_effect(cls, data: object) -> object:
        """Drop fields without effect, and the defaults that Druid writes.

        These are nulls where null is the default, and empty unsupported fields: a spec that Druid
        returns names every field.
        """
        if not isinstance(data, dict):
            return data
        cls._check_without_effect(data)
        return {
            name: value
            for name, value in cls._without_repeated(data).items()
            if name not in cls.without_effect
            and (value is not None or not cls._optional(name))
            and (name not in cls.unsupported or not cls._is_druid_default(name, value))
        }

    @classmethod
    def _check_without_effect(cls, data: dict[str, object]) -> None:
        found: Found = [
            ((name,), data[name], cls.without_effect[name].value)
            for name in sorted(cls.without_effect.keys() & data.keys())
            if not _fits(cls.without_effect[name], data[name])
        ]
        if found:
            raise mistakes(cls.__name__, found)

    @classmethod
    def _without_repeated(cls, data: dict[str, object]) -> dict[str, object]:
        found: Found = []
        kept = {name: value for name, value in data.items() if name not in cls.repeated}
        for name, other in cls.repeated.items():
            if (value := data.get(name)) is None:
                continue
            if kept.setdefault(other, value) is None:
                kept[other] = value
            if kept[other] != value:
                text = f"contradicts {other}: set only {other}"
                found.append(((name,), value, text))
        if found:
            raise mistakes(cls.__name__, found)
        return kept

    @classmethod
    def _is_druid_default(cls, name: str, value: object) -> bool:
        return value in _NOTHING or (
            name in cls.druid_defaults and value == cls.druid_defaults[name]
        )

    @classmethod
    def _optional(cls, name: str) -> bool:
        return any(name == f.alias and not f.is_required() for f in cls.model_fields.values())


def mistake(message: str) -> PydanticCustomError:
    """Return an error for a field's validator; pydantic adds the place."""
    # Braces would be taken for the placeholder of a value.
    return PydanticCustomError("spec", "{message}", {"message": message})


@contextmanager
def as_mistake() -> Iterator[None]:
    """Convert the errors of parsers into an error of a field's validator."""
    try:
        yield
    except InvalidRequest as error:
        raise mistake(str(error)) from error


def mistakes(title: str, found: Found) -> ValidationError:
    """Return several errors of one model, in pydantic's form."""
    return ValidationError.from_exception_data(
        title,
        [InitErrorDetails(type=mistake(text), loc=loc, input=value) for loc, value, text in found],
    )


def refuse_types(
    types: Mapping[str, str], *, default: str | None = None, field: str = "type"
) -> BeforeValidator:
    """Return a validator for a union by `type` that refuses Druid's other types with a remedy.

    Args:
        types: Each refused type, with its remedy.
        default: The type of an object without one; if not given, a missing type is a mistake.
        field: The field that names the type.
    """

    def check(value: object) -> object:
        if not isinstance(value, dict):
            return value
        kind = value.get(field)
        if isinstance(kind, str) and kind in types:
            text = f"the type {kind} of Druid is not supported here: {types[kind]}"
            raise mistakes("union", [((field,), kind, text)])
        return value | {field: default} if kind is None and default is not None else value

    return BeforeValidator(check)


def _fits(kind: IgnoredValue, value: object) -> bool:
    match kind:
        case _ if value is None:
            return True
        case IgnoredValue.NUMBER:
            return _is_number(value)
        case IgnoredValue.FLAG:  # Druid accepts numbers and flags as text, too.
            return str(value).lower() in {"true", "false", "0", "1"}
        case IgnoredValue.DURATION:
            return _is_duration(value)
        case IgnoredValue.OBJECT:
            return isinstance(value, dict)
        case IgnoredValue.ANY:
            return True


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool)


def _is_duration(value: object) -> bool:
    if not isinstance(value, str) and not _is_number(value):
        return False
    try:
        parse_duration(str(value))
    except InvalidRequest:
        return False
    return True

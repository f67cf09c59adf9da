"""Properties of a processor, declared as typed class attributes.

Owns the declarations and the parsing of one value. Does not own the values, which belong to the
processor (`processor`), nor parameters, which the flow graph substitutes before.

Invariants: a declaration is immutable and shared by all instances of a class. Its default is parsed
when the class is created, so that its author, not a user, sees an invalid default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, Self, TypeVar, cast, overload

from penstock.core.errors import InvalidRequest
from penstock.flow.processor.expression_language import Expression, parse_expression
from penstock.flow.processor.property_types import PropertyType, PropertyValue, text_of, type_of

T = TypeVar("T")
V = TypeVar("V")

_UNSET: Final = object()


class PropertyValues(Protocol):
    """Object that has property values: a processor."""

    @property
    def values(self) -> Mapping[str, object]:
        """Return the parsed values, by the property's name."""
        ...

    @property
    def dynamic_values(self) -> Mapping[str, object]:
        """Return the values of dynamic properties."""
        ...


@dataclass(frozen=True, slots=True)
class PropertyFacts:
    """Documentation of a property.

    Attributes:
        name: Name in flows.
        type: Its kind, such as ``period``.
        about: Purpose of the property.
        default: Default as written in a flow; None if it has none.
        required: Whether it must be set.
        sensitive: Whether its value must not be shown.
        expressions: Whether it may hold expressions.
        choices: The only allowed values, if they are few.
    """

    name: str
    type: str
    about: str
    default: str | None
    required: bool
    sensitive: bool
    expressions: bool
    choices: tuple[str, ...]


class Property(Generic[T]):
    """Property whose value is the same for every FlowFile; `self.name` is the typed value.

    With a default or `required` the value is never None.

    Args:
        kind: Type of the value: str, int, float, bool, Path, an enum, or a kind such as ``PERIOD``.
        default: Default value: of the property's type, or text that is parsed like a user's.
        required: Whether it must be set. A property with a default need not be set.
        about: Purpose of the property, for the documentation.
        sensitive: Whether its value is never shown, printed or written in clear text.
        validator: Raises `InvalidRequest` for a value of the right type that is not allowed.
        name: Name in flows, if it differs from the name of the attribute.
    """

    expressions = False

    @overload
    def __init__(
        self,
        kind: type[T] | PropertyType[T],
        *,
        default: T | str,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[T], object] | None = None,
        name: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self,
        kind: type[T] | PropertyType[T],
        *,
        required: Literal[True],
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[T], object] | None = None,
        name: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: Property[V | None],
        kind: type[V] | PropertyType[V],
        *,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[V], object] | None = None,
        name: str = "",
    ) -> None: ...
    def __init__(  # type: ignore[misc]  # the third form widens T by None
        self,
        kind: type[T] | PropertyType[T],
        *,
        default: object = _UNSET,
        required: bool = False,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[T], object] | None = None,
        name: str = "",
    ) -> None:
        self.kind = type_of(kind)
        self.about = about
        self.required = required
        self.sensitive = sensitive
        self.name = name
        self._validator = validator
        self._default = None if default is _UNSET else default

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            self.name = name
        if self._default is not None:
            self.default()

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: PropertyValues, owner: type) -> T: ...
    def __get__(self, instance: PropertyValues | None, owner: type) -> Self | T:
        if instance is None:
            return self
        return cast("T", instance.values[self.name])

    def read(self, value: PropertyValue) -> object:
        """Return the value for an entry of a flow's file.

        Raises:
            InvalidRequest: The entry is invalid. The message does not contain a sensitive value.
        """
        try:
            return self._read(value)
        except InvalidRequest as error:
            if self.sensitive:
                raise InvalidRequest(
                    f"the sensitive value is not a valid {self.kind.name}: correct it"
                ) from None
            raise InvalidRequest(str(error)) from None

    def default(self) -> object:
        """Return the default value; None if there is none."""
        if isinstance(self._default, str):
            return self._read(self._default)
        return self._default

    def facts(self) -> PropertyFacts:
        """Return the documentation of the property."""
        default: str | None = None
        if self._default is not None and not self.sensitive:
            default = _shown(self._default)
        return PropertyFacts(
            name=self.name,
            type=self.kind.name,
            about=self.about,
            default=default,
            required=self.required,
            sensitive=self.sensitive,
            expressions=self.expressions,
            choices=self.kind.choices,
        )

    def _read(self, value: PropertyValue) -> object:
        parsed = self.kind.read(value)
        if self._validator is not None:
            self._validator(parsed)
        return parsed


class ExpressionProperty(Property[Expression[T]]):
    """Property that may hold ``${attribute}``: its value depends on the FlowFile.

    `self.name` is an `Expression`: evaluate it with `self.name.of(flowfile)`.

    Args:
        kind: Kind of the result, as for `Property`.
        default: Text, which may hold expressions; without a default the property must be set.
        about: Purpose of the property, for the documentation.
        sensitive: Whether its value is never shown, printed or written in clear text.
        validator: Checks the result, for each FlowFile.
        name: Name in flows, if it differs from the name of the attribute.
    """

    expressions = True

    def __init__(
        self,
        kind: type[T] | PropertyType[T],
        *,
        default: str | None = None,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[T], object] | None = None,
        name: str = "",
    ) -> None:
        shown = expressions_of(kind, validator)
        if default is None:
            super().__init__(shown, required=True, about=about, sensitive=sensitive, name=name)
        else:
            super().__init__(shown, default=default, about=about, sensitive=sensitive, name=name)


class DynamicProperties(Generic[T]):
    """Declares that a processor accepts properties that its class does not name.

    A class declares at most one, as ``rules = DynamicProperties(str)``; `self.rules` holds the
    typed values by name.

    Args:
        kind: Kind of the values.
        about: Meaning of names and values, for the documentation.
        relationships: Whether each property adds a relationship of the same name.
    """

    expressions = False

    def __init__(
        self, kind: type[T] | PropertyType[T], *, about: str = "", relationships: bool = False
    ) -> None:
        self.kind = type_of(kind)
        self.about = about
        self.relationships = relationships
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: PropertyValues, owner: type) -> Mapping[str, T]: ...
    def __get__(self, instance: PropertyValues | None, owner: type) -> Self | Mapping[str, T]:
        if instance is None:
            return self
        return cast("Mapping[str, T]", instance.dynamic_values)

    def read(self, value: PropertyValue) -> object:
        """Return the value of one dynamic property for an entry of a flow's file.

        Raises:
            InvalidRequest: The entry is invalid.
        """
        return self.kind.read(value)


class DynamicExpressions(DynamicProperties[Expression[T]]):
    """Dynamic properties that may hold ``${attribute}``: `self.rules` holds expressions by name.

    Args:
        kind: Kind of the results.
        about: Meaning of names and values, for the documentation.
        relationships: Whether each property adds a relationship of the same name.
    """

    expressions = True

    def __init__(
        self, kind: type[T] | PropertyType[T], *, about: str = "", relationships: bool = False
    ) -> None:
        super().__init__(expressions_of(kind), about=about, relationships=relationships)


def expressions_of(
    kind: type[T] | PropertyType[T], validator: Callable[[T], object] | None = None
) -> PropertyType[Expression[T]]:
    """Return the kind of expressions whose result is of `kind`."""
    result = type_of(kind)

    def parse(text: str) -> Expression[T]:
        return parse_expression(text, result.parse, validator)

    return PropertyType(result.name, parse, result.choices, result.separator)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | bool | int | float):
        return text_of(value)
    return str(getattr(value, "value", value))

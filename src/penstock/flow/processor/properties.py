"""What a processor can be told: its properties, declared as class attributes that are typed.

Owns the declarations and the reading of one value. Does not own the values, which are the
processor's (`processor`), nor parameters, which the flow graph puts in before.

Invariants: a declaration is immutable and shared by all instances of a class; its default is read
when the class is made, so that a wrong one is found by the author, not by a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, Self, TypeVar, cast, overload

from penstock.core.errors import InvalidRequest
from penstock.flow.processor.expressions import Expression, parse_expression
from penstock.flow.processor.kinds import Kind, PropertyValue, kind_of, text_of

T = TypeVar("T")
V = TypeVar("V")

_UNSET: Final = object()


class Configured(Protocol):
    """What has values for its properties: a processor."""

    @property
    def values(self) -> Mapping[str, object]:
        """Return the values read, by the property's name."""
        ...

    @property
    def dynamic_values(self) -> Mapping[str, object]:
        """Return the values of properties that its class does not name."""
        ...


@dataclass(frozen=True, slots=True)
class PropertyFacts:
    """What is documented of a property.

    Attributes:
        name: As flows write it.
        type: Its kind, such as ``period``.
        about: What it is for.
        default: As a flow would write it; None if it has none.
        required: Whether it must be given.
        sensitive: Whether it must not be shown.
        expressions: Whether it may hold expressions.
        choices: The only values, if they are few.
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
    """A property whose value is the same for every FlowFile; `self.name` is the value, typed.

    With a default or `required` the value is never None.

    Args:
        kind: str, int, float, bool, Path, an enum, or a kind such as ``PERIOD`` or ``SIZE``.
        default: Its value if none is given: of the type, or as text that is read as a user's is.
        required: It must be given. One with a default need not be.
        about: What it is for, for the documentation.
        sensitive: Never shown, printed or written in clear.
        validator: Raises `InvalidRequest` for a value that is of the type but will not do.
        name: As flows write it, if it is not the name of the attribute.
    """

    expressions = False

    @overload
    def __init__(
        self,
        kind: type[T] | Kind[T],
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
        kind: type[T] | Kind[T],
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
        kind: type[V] | Kind[V],
        *,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[V], object] | None = None,
        name: str = "",
    ) -> None: ...
    def __init__(  # type: ignore[misc]  # the third form widens T by None
        self,
        kind: type[T] | Kind[T],
        *,
        default: object = _UNSET,
        required: bool = False,
        about: str = "",
        sensitive: bool = False,
        validator: Callable[[T], object] | None = None,
        name: str = "",
    ) -> None:
        self.kind = kind_of(kind)
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
    def __get__(self, instance: Configured, owner: type) -> T: ...
    def __get__(self, instance: Configured | None, owner: type) -> Self | T:
        if instance is None:
            return self
        return cast("T", instance.values[self.name])

    def read(self, value: PropertyValue) -> object:
        """Return the value for what a flow's file holds.

        Raises:
            InvalidRequest: It will not do. The value of a sensitive one is not in the message.
        """
        try:
            return self._read(value)
        except InvalidRequest as error:
            if self.sensitive:
                raise InvalidRequest(
                    f"the sensitive value is no {self.kind.name} that will do: mend it"
                ) from None
            raise InvalidRequest(str(error)) from None

    def default(self) -> object:
        """Return the value if none is given; None if there is no default."""
        if isinstance(self._default, str):
            return self._read(self._default)
        return self._default

    def facts(self) -> PropertyFacts:
        """Return what is documented of it."""
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
    """A property that may hold ``${attribute}``: its value differs by FlowFile.

    `self.name` is an `Expression`: ask it with `self.name.of(flowfile)`.

    Args:
        kind: As for `Property`, for what comes out.
        default: Text, which may hold expressions; without one the property must be given.
        about: What it is for, for the documentation.
        sensitive: Never shown, printed or written in clear.
        validator: Judges what comes out, for each FlowFile.
        name: As flows write it, if it is not the name of the attribute.
    """

    expressions = True

    def __init__(
        self,
        kind: type[T] | Kind[T],
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
    """Says that a processor takes properties which its class does not name.

    As a class attribute, one of a class: ``rules = DynamicProperties(str)``; `self.rules` is the
    values by name, typed.

    Args:
        kind: Of the values.
        about: What names and values mean, for the documentation.
        relationships: Whether each adds a relationship of its name.
    """

    expressions = False

    def __init__(
        self, kind: type[T] | Kind[T], *, about: str = "", relationships: bool = False
    ) -> None:
        self.kind = kind_of(kind)
        self.about = about
        self.relationships = relationships
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Configured, owner: type) -> Mapping[str, T]: ...
    def __get__(self, instance: Configured | None, owner: type) -> Self | Mapping[str, T]:
        if instance is None:
            return self
        return cast("Mapping[str, T]", instance.dynamic_values)

    def read(self, value: PropertyValue) -> object:
        """Return the value of one for what a flow's file holds.

        Raises:
            InvalidRequest: It will not do.
        """
        return self.kind.read(value)


class DynamicExpressions(DynamicProperties[Expression[T]]):
    """Dynamic properties that may hold ``${attribute}``: `self.rules` is expressions by name.

    Args:
        kind: Of what comes out.
        about: What names and values mean, for the documentation.
        relationships: Whether each adds a relationship of its name.
    """

    expressions = True

    def __init__(
        self, kind: type[T] | Kind[T], *, about: str = "", relationships: bool = False
    ) -> None:
        super().__init__(expressions_of(kind), about=about, relationships=relationships)


def expressions_of(
    kind: type[T] | Kind[T], validator: Callable[[T], object] | None = None
) -> Kind[Expression[T]]:
    """Return the kind of expressions whose value is of `kind`."""
    result = kind_of(kind)

    def parse(text: str) -> Expression[T]:
        return parse_expression(text, result.parse, validator)

    return Kind(result.name, parse, result.choices, result.separator)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | bool | int | float):
        return text_of(value)
    return str(getattr(value, "value", value))

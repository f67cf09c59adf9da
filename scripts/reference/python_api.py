"""Markdown of a package's public names: classes, functions and constants, from their docstrings."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any, Final

from reference.docstrings import Docstring, parse
from reference.markdown import fence, sentence, slug, table

_LINE_MAX: Final = 100
_MODULES: Final = re.compile(
    r"\b(?:penstock|asyncio|collections|io|pathlib|ssl|typing)(?:\.[a-z_]\w*)*\."
)


@dataclasses.dataclass(frozen=True)
class PublicNames:
    """Public names of a package, and how a page shows them.

    Attributes:
        package: The package.
        names: The names, in the order of the page.
        internal: Members that only the package uses, such as `Producer.received`.
        not_made: Classes of which a program gets instances, and makes none.
        fields: Meaning of fields that have no entry in the docstring of their class.
        texts: Purpose of names that have no docstring.
    """

    package: ModuleType
    names: tuple[str, ...]
    internal: AbstractSet[str] = frozenset()
    not_made: AbstractSet[str] = frozenset()
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def markdown(self) -> Iterator[str]:
        """Yield the lines of a table of the names, and of a chapter for each."""
        rows = [(f"[`{name}`](#{slug(name)})", self._parsed(name).summary) for name in self.names]
        yield from table(("name", "purpose"), rows)
        for name in self.names:
            yield from self._section(name)

    def _parsed(self, name: str) -> Docstring:
        one = getattr(self.package, name)
        if inspect.isclass(one) or inspect.isfunction(one):
            return parse(one)
        return Docstring(self.texts[name])

    def _section(self, name: str) -> Iterator[str]:
        one = getattr(self.package, name)
        yield from ("", f"## {name}")
        if inspect.isfunction(one):
            yield from _call(name, one)
            return
        found = self._parsed(name)
        is_enum = inspect.isclass(one) and issubclass(one, enum.Enum)
        is_made = inspect.isclass(one) and not (is_enum or _is_error(one) or name in self.not_made)
        if is_made and not dataclasses.is_dataclass(one):
            yield from fence("text", _signature(name, one))
        yield from ("", sentence(found.summary))
        if found.details:
            yield from ("", *found.details.splitlines())
        if is_enum:
            yield from ("", f"Values: {', '.join(f'`{member.name}`' for member in one)}.")
            return
        if dataclasses.is_dataclass(one):
            yield from self._fields(one, found)
        else:
            yield from _entries(found, arguments=name not in self.not_made)
        if inspect.isclass(one) and not _is_error(one):
            for member, value in vars(one).items():
                yield from self._member(name, member, value)

    def _fields(self, one: Any, found: Docstring) -> Iterator[str]:
        texts = found.entries.get("Attributes", {})
        rows = []
        for field in dataclasses.fields(one):
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                shown = "a default"
            elif default is dataclasses.MISSING:
                shown = "required"
            else:
                shown = f"`{_value(default)}`"
            text = texts.get(field.name, self.fields.get(field.name, ""))
            rows.append(
                (
                    f"`{field.name}`",
                    f"`{plain(str(field.type)).replace(' | ', ' or ')}`",
                    shown,
                    sentence(text),
                )
            )
        yield from table(("field", "type", "default", "meaning"), rows)
        yield from _raises(found)

    def _member(self, owner: str, name: str, value: Any) -> Iterator[str]:
        if name.startswith("_") or f"{owner}.{name}" in self.internal:
            return
        if isinstance(value, property):
            yield from (
                "",
                f"### {owner}.{name}",
                "",
                f"Property. {sentence(parse(value).summary)}",
            )
        elif inspect.isfunction(value):
            yield from ("", f"### {owner}.{name}")
            yield from _call(name, value)


def _is_error(one: type) -> bool:
    return issubclass(one, Exception)


def _value(default: object) -> str:
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}(…)"
    if isinstance(default, int) and not isinstance(default, bool):
        return f"{default:_}"
    return repr(default) if not callable(default) else getattr(default, "__qualname__", "…")


def _call(name: str, function: Any) -> Iterator[str]:
    found = parse(function)
    yield from fence("python", _signature(name, function))
    yield from ("", sentence(found.summary))
    if found.details:
        yield from ("", *found.details.splitlines())
    yield from _entries(found)


def _entries(found: Docstring, *, arguments: bool = True) -> Iterator[str]:
    for section, heads in (("Args", "argument"), ("Attributes", "attribute")):
        if section == "Args" and not arguments:
            continue
        rows = [
            (f"`{name}`", sentence(text)) for name, text in found.entries.get(section, {}).items()
        ]
        yield from table((heads, "meaning"), rows)
    if found.returns:
        yield from ("", f"Returns: {sentence(found.returns)}")
    yield from _raises(found)


def _raises(found: Docstring) -> Iterator[str]:
    rows = [(f"`{name}`", sentence(text)) for name, text in found.entries.get("Raises", {}).items()]
    yield from table(("error", "when"), rows)


@dataclasses.dataclass(frozen=True)
class _ShownDefault:
    """Default of a parameter, as a signature shows it: `plain` removes single quotes."""

    default: object

    def __repr__(self) -> str:
        return f'"{self.default}"' if isinstance(self.default, str) else "..."


def _is_replaced(default: object) -> bool:
    """Return whether a default is text, or an object that only marks a missing argument."""
    return isinstance(default, str) or type(default) is object


def _signature(name: str, called: Any) -> str:
    signature = inspect.signature(called)
    parameters = [
        one.replace(default=_ShownDefault(one.default)) if _is_replaced(one.default) else one
        for one in signature.parameters.values()
        if one.name not in {"self", "cls"}
    ]
    shown = plain(str(signature.replace(parameters=parameters)))
    if inspect.isclass(called):
        return _wrapped(f"{name}{shown.removesuffix(' -> None')}")
    word = "async def" if inspect.iscoroutinefunction(called) else "def"
    return _wrapped(f"{word} {name}{shown}: ...")


def _wrapped(signature: str) -> str:
    """Return a signature in lines of at most 100 characters, as ruff formats it."""
    if len(signature) <= _LINE_MAX:
        return signature
    begin, _, rest = signature.partition("(")
    inner, _, end = rest.rpartition(")")
    if len(inner) + 4 <= _LINE_MAX:
        return f"{begin}(\n    {inner}\n){end}"
    lines = "".join(f"    {one},\n" for one in re.split(r", (?![^\[(]*[\])])", inner))
    return f"{begin}(\n{lines}){end}"


def plain(text: str) -> str:
    """Return a type without modules and quotes, as a reader would write it."""
    text = re.sub(r"([A-Z]\w*)\(\w+=.*?\)(?=[,)])", r"\1(…)", text)
    return _MODULES.sub("", text).replace("'", "").replace("<factory>", "…")

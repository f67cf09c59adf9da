"""Page of `penstock.client`, from its public names and their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import penstock.client
from reference.docstrings import Docstring, parse
from reference.markdown import fence, head, sentence, slug, table

_ABOUT: Final = """\
The public names of the package `penstock.client`, with their arguments, errors and defaults. The
package publishes and consumes messages over NSQ's protocol, on asyncio, and works with Penstock
and nsqd. All errors are subclasses of `penstock.core.errors.PenstockError`.
"""
_FIRST: Final = ("Producer", "Consumer", "Message")
# Used within the package only.
_INTERNAL: Final = frozenset(
    {"Producer.received", "Producer.disconnected", "Message.is_from", "BackoffOptions.policy"}
)
# A program gets messages, and makes none.
_NOT_MADE: Final = frozenset({"Message"})
_LINE_MAX: Final = 100
_MODULES: Final = re.compile(r"\b(?:penstock|asyncio|collections|ssl|typing)(?:\.[a-z_]\w*)*\.")


def page() -> str:
    """Return docs/reference/python-client.md."""
    lines = [head("Python client", "the docstrings of `penstock.client`", _ABOUT)]
    names = [*_FIRST, *(one for one in penstock.client.__all__ if one not in _FIRST)]
    rows = [(f"[`{name}`](#{slug(name)})", _parsed(name).summary) for name in names]
    lines += table(("name", "purpose"), rows)
    for name in names:
        lines += _section(name)
    return "\n".join(lines) + "\n"


def _parsed(name: str) -> Docstring:
    one = getattr(penstock.client, name)
    if inspect.isclass(one) or inspect.isfunction(one):
        return parse(one)
    return Docstring(f"Type of handlers: `{_plain(str(one))}`.")


def _section(name: str) -> Iterator[str]:
    one = getattr(penstock.client, name)
    yield from ("", f"## {name}")
    if inspect.isfunction(one):
        yield from _call(name, one)
        return
    found = _parsed(name)
    is_made = inspect.isclass(one) and not _is_error(one) and name not in _NOT_MADE
    if is_made and not dataclasses.is_dataclass(one):
        yield from fence("text", _signature(name, one))
    yield from ("", sentence(found.summary))
    if found.details:
        yield from ("", *found.details.splitlines())
    if dataclasses.is_dataclass(one):
        yield from _fields(one, found)
    else:
        yield from _entries(found)
    if inspect.isclass(one) and not _is_error(one):
        for member, value in vars(one).items():
            yield from _member(name, member, value)


def _is_error(one: type) -> bool:
    return issubclass(one, Exception)


def _fields(one: Any, found: Docstring) -> Iterator[str]:
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
        text = texts.get(field.name, _OTHER_FIELDS.get(field.name, ""))
        rows.append(
            (
                f"`{field.name}`",
                f"`{_plain(str(field.type)).replace(' | ', ' or ')}`",
                shown,
                sentence(text),
            )
        )
    yield from table(("field", "type", "default", "meaning"), rows)
    yield from _raises(found)


# Fields whose docstrings need no entry in the code, because their names say it there.
_OTHER_FIELDS: Final = {
    "connection": "Options of its connections.",
    "deflate_level": "Level of `deflate`, 1 to 9.",
}


def _value(default: object) -> str:
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}(…)"
    if isinstance(default, int) and not isinstance(default, bool):
        return f"{default:_}"
    return repr(default) if not callable(default) else getattr(default, "__qualname__", "…")


def _member(owner: str, name: str, value: Any) -> Iterator[str]:
    if name.startswith("_") or f"{owner}.{name}" in _INTERNAL:
        return
    if isinstance(value, property):
        yield from ("", f"### {owner}.{name}", "", f"Property. {sentence(parse(value).summary)}")
    elif inspect.isfunction(value):
        yield from ("", f"### {owner}.{name}")
        yield from _call(name, value)


def _call(name: str, function: Any) -> Iterator[str]:
    found = parse(function)
    yield from fence("python", _signature(name, function))
    yield from ("", sentence(found.summary))
    if found.details:
        yield from ("", *found.details.splitlines())
    yield from _entries(found)


def _entries(found: Docstring) -> Iterator[str]:
    for section, heads in (("Args", "argument"), ("Attributes", "attribute")):
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


def _signature(name: str, called: Any) -> str:
    signature = inspect.signature(called)
    parameters = [one for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    shown = _plain(str(signature.replace(parameters=parameters)))
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


def _plain(text: str) -> str:
    """Return a type without modules and quotes, as a reader would write it."""
    text = re.sub(r"([A-Z]\w*)\(\w+=.*?\)(?=[,)])", r"\1(…)", text)
    return _MODULES.sub("", text).replace("'", "").replace("<factory>", "…")

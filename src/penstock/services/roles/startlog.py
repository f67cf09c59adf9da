"""Log lines of a process at its start: release, machine, options without secrets. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from penstock.indexing.secrets import MASK
from penstock.services.config import Options
from penstock.services.option_values import masked

_SECRETS: Final = frozenset({"token", "emitter_auth"})


def start_line(version: str, python: str, processors: int, memory_bytes: int) -> str:
    """Return the line about release and machine."""
    memory = f"{memory_bytes / (1 << 30):.1f} GiB of memory" if memory_bytes else "memory unknown"
    return f"Penstock {version} on Python {python}, {processors} processors, {memory}"


def options_line(options: Options) -> str:
    """Return the line with the options that differ from their defaults."""
    given = [
        f"{item.name.replace('_', '-')}={_shown(item.name, getattr(options, item.name))}"
        for item in fields(options)
        if getattr(options, item.name) != item.default
    ]
    return "options: " + (", ".join(sorted(given)) or "the defaults")


def _shown(name: str, value: object) -> str:
    if name in _SECRETS:
        return MASK
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return masked(text, MASK)

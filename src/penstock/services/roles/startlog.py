"""What a process logs of itself when it starts: release, machine, options without secrets. Pure."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from penstock.indexing.masking import MASK
from penstock.services.config import Options

_SECRETS: Final = frozenset({"token", "emitter_auth"})
# In URLs: what stands behind a user's name, and parameters by their names. A password may hold
# slashes, which the drivers of databases take: rather too much is hidden than half of one shown.
_PASSWORD: Final = re.compile(r"(://[^/@\s:]*:)\S*@")
_PARAMETER: Final = re.compile(
    r"((?:password|passwd|pwd|secret|token|signature|sig|key)=)[^;&\s]+", re.IGNORECASE
)


def start_line(version: str, python: str, processors: int, memory_bytes: int) -> str:
    """Return the line about release and machine."""
    memory = f"{memory_bytes / (1 << 30):.1f} GiB of memory" if memory_bytes else "memory unknown"
    return f"Penstock {version} on Python {python}, {processors} processors, {memory}"


def options_line(options: Options) -> str:
    """Return the line about the options that are not what they are by default."""
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
    return _PARAMETER.sub(rf"\g<1>{MASK}", _PASSWORD.sub(rf"\g<1>{MASK}@", text))

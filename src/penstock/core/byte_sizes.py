"""Sizes in bytes, as people write them in flows and in `access.toml`: ``10 MB``, ``1 GiB``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.core.whole_numbers import INT64_MAX

_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]i?b?|b?)", re.ASCII)
_SCALES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def parse_size(text: str) -> int:
    """Parse a size such as ``10 MB`` or ``512``, and return bytes. Units are powers of 1,024.

    Raises:
        InvalidRequest: The text is not a size.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidRequest(f"{text!r} is not a size: write one such as 512, 64 KB, 10 MB or 2 GB")
    size = int(Decimal(match[1]) * _SCALES[match[2].rstrip("ib")])
    if size > INT64_MAX:
        raise InvalidRequest(f"{quoted(text)} is more than 8 EiB: write a smaller size")
    return size


def format_size(size_bytes: int) -> str:
    """Return a size with a unit, such as ``1.5 GiB``, rounded to three digits or more."""
    for unit, scale in _UNITS:
        if size_bytes >= scale:
            return f"{round(size_bytes / scale, 2):g} {unit}"
    return f"{size_bytes} {'byte' if size_bytes == 1 else 'bytes'}"

"""The known name that resembles a wrong one, for hints in errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Names compared in full.
_COMPARED: Final = 300


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'X'?`` for the most similar known name, or an empty text."""
    names = list(known)
    if len(names) > _COMPARED:
        names = [one for one in names if _may_be_near(name, one)][:_COMPARED]
    folded = {one.casefold(): one for one in names}
    if name.casefold() in folded:
        return f"; did you mean {folded[name.casefold()]!r}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _may_be_near(name: str, other: str) -> bool:
    """Return quickly whether a comparison is worthwhile: similar length, and one equal end."""
    if abs(len(name) - len(other)) > 3:
        return False
    folded, other = name.casefold(), other.casefold()
    return folded[:2] == other[:2] or folded[-2:] == other[-2:]

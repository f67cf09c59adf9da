"""The known name that resembles a wrong one, for hints in errors.

Invariant: the time of a search is bounded, because hints are also made on event loops. Only a few
names are compared in full: those with the most equal characters at their ends.
"""

from __future__ import annotations

import difflib
import heapq
import itertools
import operator
from collections.abc import Iterable
from typing import Final

# A comparison of two names of 48 characters takes 0.2 ms.
_COMPARED_MAX: Final = 20
# Names whose equal ends are measured, which takes 2 µs each.
_MEASURED_MAX: Final = 1_000
_RESEMBLANCE: Final = 0.6


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'X'?`` for the most similar known name, or an empty text."""
    near = most_similar(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def most_similar(
    name: str, known: Iterable[str], *, resemblance: float = _RESEMBLANCE
) -> str | None:
    """Return the known name that is most similar to a wrong one; case does not matter.

    Args:
        name: The wrong name.
        known: The known names.
        resemblance: Minimum ratio of equal characters, from 0 to 1, as difflib counts them.
    """
    wrong = name.casefold()
    folded = {one.casefold(): one for one in known}
    if wrong in folded:
        return folded[wrong]
    names: list[str] = list(folded)
    if len(names) > _COMPARED_MAX:
        names = _with_equal_ends(wrong, names, resemblance)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=resemblance)
    return folded[close[0]] if close else None


def _with_equal_ends(wrong: str, names: list[str], resemblance: float) -> list[str]:
    """Return the few names that have most characters at their ends in common with a wrong one."""
    start, end = wrong[:2], wrong[-2:]
    # Names of other lengths cannot reach the resemblance: 2 x shorter / (shorter + longer).
    shortest = len(wrong) * resemblance / (2 - resemblance)
    longest = len(wrong) * (2 - resemblance) / resemblance
    near = (
        one
        for one in names
        if shortest <= len(one) <= longest and (one.startswith(start) or one.endswith(end))
    )
    backwards = wrong[::-1]

    def equal_at_ends(one: str) -> int:
        return _equal_at_start(wrong, one) + _equal_at_start(backwards, reversed(one))

    measured = itertools.islice(near, _MEASURED_MAX)
    return heapq.nlargest(_COMPARED_MAX, measured, key=equal_at_ends)


def _equal_at_start(one: Iterable[str], other: Iterable[str]) -> int:
    equal = map(operator.eq, one, other)
    return sum(itertools.takewhile(bool, equal))

"""Prioritizers that users write: found by import path, and guarded to protect queues.

Owns finding them, and the handling of invalid keys. Does not own the order (`prioritizers`), nor
the list of modules that flows may name (`modules`).

Invariants: whatever a user's prioritizer returns or raises, keys can be compared with each other,
always with the same result. A FlowFile without a valid key comes last, which is logged once.
"""

from __future__ import annotations

import logging
import math
from typing import Final, Protocol, runtime_checkable

from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer, prioritizer_named
from penstock.flow.user_modules import FlowModules

_logger = logging.getLogger(__name__)

_WHAT: Final = "prioritizer"
_NUMBER, _TEXT, _BYTES, _SEVERAL, _NONE, _WRONG = range(6)
_WRONG_KEY: Final = (_WRONG,)


@runtime_checkable
class HasKey(Protocol):
    """User's prioritizer: a class whose constructor takes no arguments, with this method."""

    def key(self, flowfile: FlowFile) -> object:
        """Return a number, a text, bytes, None or a tuple of these; the lowest comes first."""
        ...


class OwnPrioritizer:
    """User's prioritizer with a guard.

    Args:
        path: Its import path, which is the name of the order in swap files.
        own: The user's object.
    """

    def __init__(self, path: str, own: HasKey) -> None:
        self.name = path
        self._own = own
        self._complained = False

    def key(self, flowfile: FlowFile) -> tuple[object, ...]:
        """Return a key that can be compared with every other."""
        try:
            return _comparable(self._own.key(flowfile))
        except Exception as error:  # noqa: BLE001 - user code must not break the queue
            if not self._complained:
                self._complained = True
                _logger.warning(
                    "prioritizer %s returns no valid key for FlowFile %d, which comes last: %s: %s",
                    self.name,
                    flowfile.id,
                    type(error).__name__,
                    error,
                )
            return _WRONG_KEY


def prioritizer_of(text: str, modules: FlowModules) -> Prioritizer:
    """Return a standard prioritizer by its name, or a user's by its import path.

    Args:
        text: `PriorityAttributePrioritizer`, or `package.module:Class`.
        modules: Modules that flows may name.

    Raises:
        InvalidRequest: It does not exist, a flow may not name it, or it is not a prioritizer.
    """
    if ":" not in text:
        return prioritizer_named(text)
    try:
        found = modules.load(text, _WHAT)
    except NotFound as error:
        raise InvalidRequest(str(error)) from error
    if not isinstance(found, type):
        raise InvalidRequest(f"prioritizer {text}: it is not a class: correct the path")
    try:
        own = found()
    except (Exception, SystemExit) as error:  # a user's class may raise anything at all
        raise InvalidRequest(
            f"prioritizer {text} cannot be created ({type(error).__name__}: {error}): its class "
            "must take no arguments"
        ) from error
    if not isinstance(own, HasKey):
        raise InvalidRequest(f"{text} is not a prioritizer: give its class a method key(flowfile)")
    return OwnPrioritizer(text, own)


def check_prioritizer(text: str, modules: FlowModules) -> None:
    """Check that a flow may use a prioritizer, without importing anything.

    Raises:
        InvalidRequest: The errors of `prioritizer_of` that can be detected without the class.
    """
    if ":" not in text:
        prioritizer_named(text)
        return
    try:
        modules.check(text, _WHAT)
    except NotFound as error:
        raise InvalidRequest(str(error)) from error


def _comparable(value: object) -> tuple[object, ...]:
    if isinstance(value, bool | int | float):
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("the key is NaN, which cannot be compared")
        return (_NUMBER, value)
    if isinstance(value, str):
        return (_TEXT, value)
    if isinstance(value, bytes):
        return (_BYTES, value)
    if isinstance(value, tuple):
        return (_SEVERAL, tuple(_comparable(part) for part in value))
    if value is None:
        return (_NONE,)
    raise TypeError(
        f"a key must be a number, text, bytes, None or a tuple, not {type(value).__name__}"
    )

"""Prioritizers that users write: found by import path, and kept from breaking a queue.

Owns the finding, and what becomes of a key that is none. Does not own the order (`prioritizers`).

Invariants: whatever a user's prioritizer returns or raises, keys compare with each other and always
in the same way; what has no right key comes last, and that is logged once.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
from typing import Final, Protocol, runtime_checkable

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer, prioritizer_named

_logger = logging.getLogger(__name__)

_PATH: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_NUMBER, _TEXT, _BYTES, _SEVERAL, _NONE, _WRONG = range(6)
_WRONG_KEY: Final = (_WRONG,)


@runtime_checkable
class HasKey(Protocol):
    """What a user's prioritizer needs: a class without arguments that has this method."""

    def key(self, flowfile: FlowFile) -> object:
        """Return a number, a text, bytes, None or a tuple of such; less comes first."""
        ...


class OwnPrioritizer:
    """A user's prioritizer, guarded.

    Args:
        path: Where it was found; it names the order in swap files.
        own: The user's.
    """

    def __init__(self, path: str, own: HasKey) -> None:
        self.name = path
        self._own = own
        self._complained = False

    def key(self, flowfile: FlowFile) -> tuple[object, ...]:
        """Return a key that compares with every other."""
        try:
            return _comparable(self._own.key(flowfile))
        except Exception as error:  # noqa: BLE001 - a user's code must not break the queue
            if not self._complained:
                self._complained = True
                _logger.warning(
                    "prioritizer %s gives no key for FlowFile %d, which comes last: %s: %s",
                    self.name,
                    flowfile.id,
                    type(error).__name__,
                    error,
                )
            return _WRONG_KEY


def prioritizer_of(text: str) -> Prioritizer:
    """Return a standard prioritizer by its name, or a user's by its import path.

    Args:
        text: `PriorityAttributePrioritizer`, or `package.module:Class`.

    Raises:
        InvalidRequest: There is none, or it is no prioritizer.
    """
    if ":" not in text:
        return prioritizer_named(text)
    match = _PATH.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r} is no import path: write one such as package.module:Class")
    try:
        found = getattr(importlib.import_module(match[1]), match[2])
        own = found()
    except (ImportError, AttributeError, TypeError, ValueError, SyntaxError, NameError) as error:
        raise InvalidRequest(
            f"prioritizer {text} cannot be made ({type(error).__name__}: {error}): put its module "
            "on the Python path of the service; its class takes no arguments"
        ) from error
    if not isinstance(own, HasKey):
        raise InvalidRequest(f"{text} is no prioritizer: give its class a method key(flowfile)")
    return OwnPrioritizer(text, own)


def _comparable(value: object) -> tuple[object, ...]:
    if isinstance(value, bool | int | float):
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("a key that is no number (NaN) compares with nothing")
        return (_NUMBER, value)
    if isinstance(value, str):
        return (_TEXT, value)
    if isinstance(value, bytes):
        return (_BYTES, value)
    if isinstance(value, tuple):
        return (_SEVERAL, tuple(_comparable(part) for part in value))
    if value is None:
        return (_NONE,)
    raise TypeError(f"a key is a number, text, bytes, None or a tuple, not {type(value).__name__}")

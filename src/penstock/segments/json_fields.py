"""Fields of JSON objects that came from outside, each with its type and its place in the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from penstock.core.errors import InvalidRequest


class JsonFields:
    """The fields of one JSON object.

    Args:
        value: The object.
        place: Its name in messages, such as ``segment.shardSpec``.

    Raises:
        InvalidRequest: Raised by every method: a field is missing or has the wrong type.
    """

    __slots__ = ("_place", "_value")

    def __init__(self, value: Mapping[str, object], place: str) -> None:
        self._value = value
        self._place = place

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty."""
        found = self._value.get(key, default)
        if not isinstance(found, str) or not found:
            raise self._wrong(key, "a text", found)
        return found

    def optional_text(self, key: str) -> str | None:
        """Return a text, None if there is none."""
        found = self._value.get(key)
        if found is not None and not isinstance(found, str):
            raise self._wrong(key, "a text", found)
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number that is not negative."""
        found = self._value.get(key)
        if found is None:
            found = default
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._wrong(key, "a whole number", found)
        return found

    def signed(self, key: str, default: int) -> int:
        """Return a whole number, which may be negative."""
        found = self._value.get(key)
        if found is None:
            return default
        if not isinstance(found, int) or isinstance(found, bool):
            raise self._wrong(key, "a whole number", found)
        return found

    def mapping(self, key: str) -> Mapping[str, object]:
        """Return an object; an empty one if there is none."""
        found = self._value.get(key)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            raise self._wrong(key, "an object", found)
        return cast("Mapping[str, object]", found)

    def optional_mapping(self, key: str) -> Mapping[str, object] | None:
        """Return an object, None if there is none."""
        return None if self._value.get(key) is None else self.mapping(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; an empty one if there is none."""
        return tuple(self._one_text(key, item) for item in self.items(key) or ())

    def texts_or_nulls(self, key: str) -> tuple[str | None, ...] | None:
        """Return a list of texts and nulls, None if there is none."""
        found = self.items(key)
        if found is None:
            return None
        return tuple(None if item is None else self._one_text(key, item) for item in found)

    def joined_texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a list, or of one text with commas, as Druid writes it."""
        found = self._value.get(key)
        if isinstance(found, str):
            return tuple(part for part in found.split(",") if part)
        return self.texts(key)

    def items(self, key: str) -> Sequence[object] | None:
        """Return a list of anything, None if there is none."""
        found = self._value.get(key)
        if found is None:
            return None
        if not isinstance(found, Sequence) or isinstance(found, str | bytes):
            raise self._wrong(key, "a list", found)
        return cast("Sequence[object]", found)

    def wrong(self, key: str, message: str) -> InvalidRequest:
        """Return an error that names the field."""
        return InvalidRequest(message, place=f"{self._place}.{key}")

    def _one_text(self, key: str, item: object) -> str:
        if not isinstance(item, str):
            raise self._wrong(key, "a list of texts", self._value.get(key))
        return item

    def _wrong(self, key: str, wanted: str, found: object) -> InvalidRequest:
        return self.wrong(key, f"must be {wanted}, not {found!r}")

"""EvaluateJsonPath: extracts values from JSON content, into attributes or as the new content.

Owns the use of the values. Does not own the paths: a library implements RFC 9535.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, TypeAlias

import orjson
from jsonpath import CompoundJSONPath, JSONPath, JSONPathError
from jsonpath import compile as compile_path

from penstock.core.errors import InvalidRequest
from penstock.core.out_of_memory import is_out_of_memory, memory_text
from penstock.flow.flowfile import MIME_TYPE, UUID
from penstock.flow.processor import (
    SIZE,
    DynamicProperties,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    PropertyType,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail

_BATCH_FLOWFILES: Final = 50
_CONTENT_MAX_BYTES: Final = 256 << 20
_ATTRIBUTE_MAX_CHARS: Final = 1 << 20

_Path: TypeAlias = JSONPath | CompoundJSONPath


def _compiled(text: str) -> _Path:
    if not text.strip():
        raise InvalidRequest("the path is empty: write one such as $.title, or $ for all")
    try:
        return compile_path(text)
    except (JSONPathError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or "it nests too deeply"
        raise InvalidRequest(
            f"invalid JSONPath {text!r}: {reason}; write one such as $.store.book[0].title"
        ) from None


_PATH: Final = PropertyType("JSONPath", _compiled)


class Destination(enum.Enum):
    """Destination of the values."""

    ATTRIBUTES = "attributes"
    CONTENT = "content"


class MissingResult(enum.Enum):
    """Handling of the attribute for a path without a result."""

    SKIP = "skip"
    EMPTY = "empty"


class EvaluateJsonPath(Processor):
    """Extracts values from JSON content by JSONPath (RFC 9535).

    Each dynamic property is a path. A path with at most one result, such as ``$.a.b[0]``, gives its
    value; any other path gives the JSON list of all results. Text is written without quotes, other
    values as JSON.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("json", "jsonpath", "attributes", "extract")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "of each property": "Extracted value.",
        "mime.type": "`application/json`, if the destination is the content.",
        **WRITES_REASON,
    }

    destination = Property(
        Destination,
        default="attributes",
        about="attributes: one with each property's name; content: the only property, as JSON.",
    )
    missing = Property(
        MissingResult,
        default="skip",
        about="For a path without a result: skip sets no attribute; empty sets an empty one.",
    )
    null_text = Property(str, default="", about="Text of JSON's null in an attribute.")
    max_size = Property(
        SIZE,
        default="16 MB",
        about="Maximum size; larger content fails, because JSON is held in memory.",
    )
    paths = DynamicProperties(_PATH, about="Name of an attribute, and the path to its value.")

    matched = Relationship("At least one path has a result.")
    unmatched = Relationship("No path has a result; the FlowFile is unchanged.")
    failure = Relationship("The content is not valid JSON, or too large.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not self.paths:
            yield Problem("", "there are no paths: add a property such as title=$.title")
        if UUID in self.paths:
            yield Problem(UUID, "never changes: use another name")
        if self.destination is Destination.CONTENT and len(self.paths) > 1:
            yield Problem(
                "destination", "content can hold the result of only one path: remove the others"
            )
        if not 0 < self.max_size <= _CONTENT_MAX_BYTES:
            yield Problem("max_size", "must be more than 0 and at most 256 MB")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Evaluate the paths for a batch."""
        for flowfile in session.get_many(_BATCH_FLOWFILES):
            try:
                found = self._found(session, flowfile)
                self._deliver(session, flowfile, found)
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)

    def _found(self, session: ProcessSession, flowfile: FlowFile) -> dict[str, object]:
        if flowfile.size > self.max_size:
            raise ProcessError(
                f"the JSON content has {flowfile.size:,} bytes, more than max_size "
                f"({self.max_size:,}): raise it, or split the content first"
            )
        try:
            document: object = orjson.loads(session.read_all(flowfile, self.max_size))
        except orjson.JSONDecodeError as error:
            raise ProcessError(f"the content is not valid JSON: {error}") from None
        except (MemoryError, SystemError) as error:
            if not is_out_of_memory(error):
                raise
            raise ProcessError(
                f"the process ran out of its {memory_text()} while it read {flowfile.size:,} "
                "bytes of JSON, and the content may be intact: free memory or lower max_size"
            ) from None
        if not isinstance(document, dict | list):
            raise ProcessError(
                "the content is a single JSON value, but paths need objects or lists"
            )
        found: dict[str, object] = {}
        for name, path in self.paths.items():
            try:
                values = path.findall(document)
            except (JSONPathError, RecursionError) as error:
                reason = str(error).partition("\n")[0] or "the content nests too deeply"
                raise ProcessError(f"path {name!r} ({path}): {reason}") from None
            if values:
                single = isinstance(path, JSONPath) and path.singular_query()
                found[name] = values[0] if single else values
        return found

    def _deliver(
        self, session: ProcessSession, flowfile: FlowFile, found: Mapping[str, object]
    ) -> None:
        if not found:
            session.transfer(flowfile, self.unmatched)
            return
        if self.destination is Destination.CONTENT:
            [(name, value)] = found.items()
            session.write(flowfile, _json(name, value))
            session.put_attributes(flowfile, {MIME_TYPE: "application/json"})
        else:
            nothing = {} if self.missing is MissingResult.SKIP else dict.fromkeys(self.paths, "")
            texts = {name: self._text(name, value) for name, value in found.items()}
            session.put_attributes(flowfile, {**nothing, **texts})
        session.transfer(flowfile, self.matched)

    def _text(self, name: str, value: object) -> str:
        if value is None:
            return self.null_text
        text = value if isinstance(value, str) else _json(name, value).decode()
        if len(text) > _ATTRIBUTE_MAX_CHARS:
            raise ProcessError(
                f"the result of path {name!r} has {len(text):,} characters, too many for an "
                f"attribute (at most {_ATTRIBUTE_MAX_CHARS:,}): use destination content"
            )
        return text


def _json(name: str, value: object) -> bytes:
    """Return the result of a path as JSON.

    Raises:
        ProcessError: It nests too deeply: orjson reads more levels than it writes.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise ProcessError(
            f"the result of path {name!r} cannot be written as JSON: {error}; use a path to an "
            "inner value"
        ) from None

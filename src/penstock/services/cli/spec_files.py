"""Specs and flows that a command submits as a file: reading them, and errors with their places.

Owns the names of the kinds of such files, the command for each kind, and the translation of a
server's error into one with the file, line and column. The server checks the content: a file is
parsed here only to explain an error, because importing the parser is slow.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from penstock.core.errors import InvalidRequest
from penstock.services.cli.output import parse_json, read_text

if TYPE_CHECKING:
    from penstock.core.yaml_tree import YamlNode

_YAML_PLACE: Final = re.compile(r"line (\d+), column (\d+): ")
# A mistake as `penstock.indexing.specs.errors.SpecError` lists it: a path, and what is wrong.
_MISTAKE: Final = re.compile(r"^( *)([^\s:]+): (is required)?", re.MULTILINE)
_STEP: Final = re.compile(r"\[(\d+)\]")
# Larger files are not parsed to explain an error, which takes about a second for a megabyte.
_EXPLAINED_BYTES_MAX: Final = 1 << 20
_EXPLAINED_VALUES_MAX: Final = 500_000
_DEPTH_MAX: Final = 100
_OF_FLOWS: Final = frozenset(
    {"processors", "connections", "groups", "funnels", "input_ports", "output_ports"}
)
_OF_LOOKUPS: Final = frozenset({"map", "inputSource"})


class DocumentKind(StrEnum):
    """Kind of a file that a command submits, as errors name it."""

    FLOW = "a flow"
    SUPERVISOR = "the spec of a supervisor"
    TASK = "a task"
    LOOKUP = "the spec of a lookup"


_COMMANDS: Final = {
    DocumentKind.FLOW: "penstock flow apply",
    DocumentKind.SUPERVISOR: "penstock supervisor submit",
    DocumentKind.TASK: "penstock task submit",
    DocumentKind.LOOKUP: "penstock lookup apply",
}


def read_spec(file: Path) -> bytes:
    """Return a JSON or YAML file unparsed, so that the server can detect duplicate names.

    Raises:
        InvalidRequest: As `read_json`; the server parses YAML.
    """
    text = read_text(file)
    if not text.strip():
        raise InvalidRequest("is empty: write a spec in JSON or YAML", place=str(file))
    if text.lstrip().startswith(("{", "[")):
        parse_json(text, str(file), whole=len)
    return text.encode(errors="surrogateescape")


@contextlib.contextmanager
def errors_in(file: Path, spec: bytes, kind: DocumentKind) -> Iterator[None]:
    """Explain errors of the server by the file: places of its mistakes, or its other kind.

    Args:
        file: Name of the file.
        spec: Its content.
        kind: The kind that the command submits.

    Raises:
        InvalidRequest: The block raised it.
    """
    try:
        yield
    except InvalidRequest as error:  # narrow: translates
        text = str(error)
        if place := _YAML_PLACE.match(text):
            where = f"{file}:{place[1]}:{place[2]}"
            raise InvalidRequest(text[place.end() :], place=where) from None
        if problem := other_kind(file, spec, kind):
            raise InvalidRequest(problem, place=str(file)) from None
        root = _tree(spec)
        if root is None:
            raise
        raise InvalidRequest(_located(text, file, root)) from None


def other_kind(file: Path | str, content: bytes, kind: DocumentKind) -> str:
    """Return the problem that a file is of another kind, with its remedy; empty if it is not."""
    root = _tree(content)
    found = None if root is None else _kind_of(root)
    if found is None or found is kind:
        return ""
    name = "FILE" if str(file) == "-" else file
    return f"is {found}, not {kind}: submit it with {_COMMANDS[found]} {name}"


def _tree(content: bytes) -> YamlNode | None:
    """Return the parsed file; None if it cannot be parsed, or is too large for that."""
    from penstock.core.yaml_tree import InvalidYaml, YamlLimits, read_tree  # noqa: PLC0415 - only for errors

    limits = YamlLimits(_EXPLAINED_BYTES_MAX, _DEPTH_MAX, _EXPLAINED_VALUES_MAX, remedy="")
    try:
        return read_tree(content, limits)
    except InvalidYaml:
        return None


def _kind_of(root: YamlNode) -> DocumentKind | None:
    """Return the kind of a file, if it is clear."""
    # Imported here, because it is slow, and only an error needs them.
    from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES  # noqa: PLC0415 - slow to import
    from penstock.indexing.specs.compaction import AUTOCOMPACT  # noqa: PLC0415 - slow to import
    from penstock.indexing.specs.stream_config import StreamType  # noqa: PLC0415 - slow to import

    fields = root.value if isinstance(root.value, dict) else {}
    named = fields.get("type")
    if named is None:
        if "name" in fields and not _OF_LOOKUPS.isdisjoint(fields):
            return DocumentKind.LOOKUP
        is_flow = not _OF_FLOWS.isdisjoint(fields) and "spec" not in fields
        return DocumentKind.FLOW if is_flow else None
    if named.value in BATCH_TASK_TYPES:
        return DocumentKind.TASK
    return DocumentKind.SUPERVISOR if named.value in (*get_args(StreamType), AUTOCOMPACT) else None


def _located(text: str, file: Path, root: YamlNode) -> str:
    """Return the text of an error with the line and column of each of its mistakes."""

    def located(mistake: re.Match[str]) -> str:
        place = _position(root, mistake[2])
        if place is None:
            if mistake[3] is None:
                return mistake[0]  # a word, such as `Suggestion: `, or a path in another text
            place = root.line, root.column
        return f"{mistake[1]}{file}:{place[0]}:{place[1]}: {mistake[0].lstrip(' ')}"

    return _MISTAKE.sub(located, text)


def _position(root: YamlNode, path: str) -> tuple[int, int] | None:
    """Return where the field of a path is written, or the nearest object around a missing one.

    Returns None if the path does not begin with a field of the document.
    """
    node, line, column, given = root, root.line, root.column, path
    while path:
        if isinstance(node.value, list):
            step = _STEP.match(path)
            if step is None or int(step[1]) >= len(node.value):
                break
            node = node.value[int(step[1])]
            line, column, path = node.line, node.column, path[step.end() :]
        elif isinstance(node.value, dict):
            # Names may contain dots, so the longest one fits.
            names = [one for one in node.value if _begins(path, one)]
            if not names:
                break
            name = max(names, key=len)
            key = node.keys[name]
            node, line, column, path = node.value[name], key.line, key.column, path[len(name) :]
        else:
            break
        path = path.removeprefix(".")
    return None if path == given else (line, column)


def _begins(path: str, name: str) -> bool:
    rest = path[len(name) :]
    return path.startswith(name) and (not rest or rest[0] in ".[")

"""Common parts of the flow commands: requests, reading flow files, and printing problems.

Owns the requests and their time limit. Problems of a file are printed one a line, as compilers do,
so that editors find their places: `FILE:LINE:COLUMN: field: problem`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from penstock.core.errors import counted
from penstock.core.http_errors import error_of_answer
from penstock.flow.graph.source_locations import FlowProblem, SourceLocation
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import (
    print_json,
    require_readable,
    translate_read_errors,
    warn,
)
from penstock.services.json_client import COMMAND_LINE
from penstock.services.json_values import objects, whole

# The server waits up to half a minute for processors to stop before it refuses a change.
TIMEOUT_S = 90.0

Object = dict[str, object]


@dataclass(frozen=True, slots=True)
class FlowDocument:
    """A file with a flow, unparsed.

    Attributes:
        name: Name for problems.
        content: Its bytes.
    """

    name: str
    content: bytes

    @staticmethod
    def read(file: Path) -> FlowDocument:
        """Read a file; `-` is standard input.

        Raises:
            InvalidRequest: The file cannot be read.
        """
        if str(file) == "-":
            return FlowDocument("-", sys.stdin.buffer.read())
        with translate_read_errors(file):
            require_readable(file)
            return FlowDocument(str(file), file.read_bytes())


def request(
    method: str, path: str, query: Mapping[str, object] | None = None, body: bytes = b""
) -> object:
    """Send a request to the flow service; the answer is JSON, or text.

    Raises:
        Refused: The flow that was sent has problems.
        PenstockError: The error in the server's answer.
    """
    kind, content = _exchange(method, path, query, body)
    return json.loads(content) if kind.startswith("application/json") else content.decode()


def request_bytes(path: str, query: Mapping[str, object]) -> bytes:
    """Request bytes. Raises as `request`."""
    return _exchange("GET", path, query, b"")[1]


def _exchange(
    method: str, path: str, query: Mapping[str, object] | None, body: bytes
) -> tuple[str, bytes]:
    api = CLI.api(TIMEOUT_S)
    status, kind, content = api.exchange(method, path, body, query=query)
    if status >= 300:
        problems = _problems(content)
        if problems:
            raise FlowRefused(problems)
        request_line = f"{method} {api.base_url}{path}"
        raise error_of_answer(status, content, request_line, remedies=COMMAND_LINE)
    return kind, content


def request_object(
    method: str, path: str, query: Mapping[str, object] | None = None, body: bytes = b""
) -> Object:
    """Request a JSON object. Raises as `request`."""
    answer = request(method, path, query, body)
    return answer if isinstance(answer, dict) else {}


class FlowRefused(Exception):
    """The server refuses a flow because of `problems`."""

    def __init__(self, problems: Sequence[FlowProblem]) -> None:
        super().__init__(counted(len(problems), "problem"))
        self.problems = problems


def end_with(problems: Sequence[FlowProblem], *, as_json: bool, then: str = "") -> NoReturn:
    """Print the problems of a flow and end the command.

    Args:
        problems: The problems.
        as_json: Print JSON.
        then: The checks that were not made because of these problems, as a sentence.
    """
    if as_json:
        listed = [
            {
                "file": problem.place.file,
                "line": problem.place.line,
                "column": problem.place.column,
                "path": problem.place.path,
                "message": problem.message,
            }
            for problem in problems
        ]
        note = {"note": then} if then else {}
        print_json({"valid": False, "problems": listed, **note})
    else:
        for problem in problems:
            warn(str(problem))
        count = counted(len(problems), "problem")
        warn(f"penstock: {count} in the flow; nothing was changed{f'; {then}' if then else ''}")
    raise typer.Exit(exit_codes.USAGE)


def _problems(content: bytes) -> list[FlowProblem]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return []
    found = objects(answer, "problems")
    return [
        FlowProblem(
            SourceLocation(
                whole(one, "line"), whole(one, "column"), _text(one, "path"), _text(one, "file")
            ),
            _text(one, "message"),
        )
        for one in found
    ]


def _text(of: Object, name: str) -> str:
    return str(of.get(name) or "")

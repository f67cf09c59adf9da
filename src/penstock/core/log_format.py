"""Format of log lines, in which no value can look like a separate line.

Values in messages may be data: their control characters are escaped, including line ends. A stack
trace keeps its lines, and every line of an error after its first is indented.
"""

from __future__ import annotations

import logging
import re
import traceback
from types import TracebackType
from typing import TextIO

from penstock.core.printable import escaped, escaped_lines

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_INDENT = "    "
# The beginning of every log line.
_TIME = re.compile(r"^(?=\d{4}-\d\d-\d\d \d\d:)", re.ASCII | re.MULTILINE)


class LogFormatter(logging.Formatter):
    """Formats the records of a process, each as one line and, for an error, its stack trace."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - named by `logging`
        """Return the line of a record."""
        return escaped(super().formatMessage(record))

    def formatException(  # noqa: N802 - named by `logging`
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Return the stack trace of an error, in which its message cannot begin a log line."""
        if ei[1] is None:
            return ""
        parts = traceback.TracebackException.from_exception(ei[1], compact=True).format()
        text = "\n".join(_indented(escaped_lines(part)) for part in parts)
        return _TIME.sub(_INDENT, text)  # each line of a note is a separate part

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - named by `logging`
        """Return a stack that was logged without an error."""
        return escaped_lines(stack_info)


def log_to_stream(stream: TextIO | None = None) -> None:
    """Send the log of this process to a stream, by default standard error."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _indented(part: str) -> str:
    """Indent all lines of a part of a stack trace except its first."""
    first, *more = part.rstrip("\n").split("\n")
    return "\n".join([first, *(line if line[:1] == " " else _INDENT + line for line in more)])

"""Text for terminals and logs: control characters are replaced by their escapes.

Data may contain characters that move the cursor, reverse the reading direction or end a line. This
module defines these characters and their escapes. It is used for the output of commands and the
formatter of logs.
"""

from __future__ import annotations

import json
import re
from typing import Final

# C0 and C1 controls, DEL, line and paragraph separator, characters that override or isolate the
# reading direction, and surrogates, which no output can encode.
HIDDEN: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"

_IN_LINE: Final = re.compile(f"[{HIDDEN}]")
_IN_LINES: Final = re.compile(f"(?![\n\t])[{HIDDEN}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_QUOTED_MAX: Final = 60


def escaped(text: str) -> str:
    """Return a text as one line in which no character controls a terminal or ends the line."""
    return text if _is_plain(text) else _IN_LINE.sub(_escape, text)


def escaped_lines(text: str) -> str:
    """Return a text as `escaped` does, but keep its tabs and line ends."""
    if _is_plain(text):
        return text
    return _IN_LINES.sub(_escape, text.replace("\r\n", "\n"))


def escaped_json(text: str) -> str:
    """Return JSON of the same meaning without such characters, except those between its values."""
    return text if _is_plain(text) else _IN_LINES.sub(_escape_json, text)


def quoted(text: str) -> str:
    """Return a text for a message: shortened if it is long, in quotes, with escapes."""
    return repr(text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…")


def to_header(text: str) -> bytes:
    """Return a text as the value of an HTTP header: escaped, in UTF-8."""
    return escaped(text).encode()


def from_header(value: str) -> str:
    """Decode a header by `to_header`, which Python decoded as Latin-1.

    A value that is not UTF-8 is returned unchanged: another server may have written it.
    """
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:  # narrow: restores nothing
        return value


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def _escape_json(found: re.Match[str]) -> str:
    # Outside of its strings, JSON may contain a carriage return as white space.
    return " " if found.group() == "\r" else json.dumps(found.group())[1:-1]

"""Log lines: no value of a message and no text of an error looks like a line of its own."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest

from penstock.core.error_output import error_lines
from penstock.core.log_format import LogFormatter, log_to_stream

FORGED = "x\n2026-11-28 02:00:00,000 ERROR penstock: forged\x1b[31m\r\u2028"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")


def logged(text: str, *values: object, error: BaseException | None = None) -> str:
    record = logging.LogRecord("penstock.x", logging.ERROR, "f", 1, text, values, None)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return LogFormatter().format(record)


def caught(error: Exception, cause: Exception | None = None) -> Exception:
    def raising() -> None:
        raise error from cause

    with pytest.raises(type(error)) as found:
        raising()
    return found.value


def test_a_message_is_one_line_whatever_its_values_are() -> None:
    line = logged("topic %s is gone", FORGED)
    assert _LINE.match(line)
    assert line.endswith(
        r"topic x\n2026-11-28 02:00:00,000 ERROR penstock: forged\x1b[31m\r\u2028 is gone"
    )
    assert "\n" not in line


def test_a_stack_trace_keeps_its_lines_and_forges_none() -> None:
    outer = RuntimeError("outer\nTraceback (most recent call last):")
    error = caught(outer, caught(ValueError(FORGED)))
    lines = logged("it failed", error=error).split("\n")
    assert [line for line in lines if _LINE.match(line)] == lines[:1]
    assert lines[1] == "Traceback (most recent call last):"
    assert "ValueError: x" in lines
    assert r"    2026-11-28 02:00:00,000 ERROR penstock: forged\x1b[31m\r\u2028" in lines
    assert "RuntimeError: outer" in lines
    assert lines.count("Traceback (most recent call last):") == 2
    assert not any("\x1b" in line for line in lines)
    assert error_lines("\n".join(lines[1:]))[-1] == "RuntimeError: outer"


def test_the_name_of_a_class_and_notes_are_covered() -> None:
    error = caught(ValueError(FORGED))
    error.add_note("a note\n2026-11-28 02:00:00,000 ERROR penstock: forged")
    lines = logged("it failed", error=error).split("\n")
    assert [line for line in lines if _LINE.match(line)] == lines[:1]


def test_a_stack_without_an_error_is_escaped() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "here", (), None)
    record.stack_info = "Stack:\n  a\x1b"
    assert LogFormatter().format(record).endswith("here\nStack:\n  a\\x1b")
    record = logging.LogRecord("x", logging.INFO, "f", 1, "here", (), None)
    record.exc_info = (None, None, None)
    assert LogFormatter().format(record).endswith("here")


def test_a_process_logs_in_this_form(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    stream = io.StringIO()
    log_to_stream(stream)
    root.error("a\nb")
    assert stream.getvalue().endswith("ERROR root: a\\nb\n")
    assert stream is not sys.stderr

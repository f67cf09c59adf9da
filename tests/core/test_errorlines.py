"""The lines of an output that name an error."""

from __future__ import annotations

from pathlib import Path

from penstock.core.error_output import error_lines, tail

OF_JAVA = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.io.FileNotFoundException: File x does not exist
\tat org.apache.hadoop.fs.RawLocalFileSystem.open(RawLocalFileSystem.java:980)
Caused by: java.lang.Error: why
\t... 20 more
"""
OF_PYTHON = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError("no")
ValueError: no
"""


def test_stack_frames_are_left_out() -> None:
    assert error_lines(OF_JAVA) == [
        'Exception in thread "main" java.io.FileNotFoundException: File x does not exist',
        "Caused by: java.lang.Error: why",
    ]
    assert error_lines(OF_PYTHON) == ["ValueError: no"]
    assert error_lines("") == []


def test_the_last_lines_are_kept_and_long_ones_are_cut() -> None:
    assert error_lines("\n".join("abcdefg")) == list("cdefg")
    assert error_lines("x" * 1_000) == ["x" * 300 + "…"]


def test_a_tail_begins_at_the_position_unless_the_file_was_rotated(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("before after")
    assert tail(file, 7) == "after"
    assert tail(file, 100) == "before after"
    assert tail(tmp_path / "missing") == ""

"""The examples of the page about tests run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
FILES = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def write(folder: Path, *names: str) -> None:
    """Write files of the page; of two with one name, the last."""
    for name, text in FILES:
        if name in names:
            (folder / name).write_text(text)


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_page_is_run() -> None:
    assert {name for name, _ in FILES} == {
        "conftest.py",
        "slow_pages.py",
        "test_slow_pages.py",
        "check.py",
        "test_clicks.py",
        "keep_latest.py",
        "test_keep_latest.py",
        "test_time.py",
    }


def test_the_examples_with_a_broker(tmp_path: Path) -> None:
    write(tmp_path, "conftest.py", "slow_pages.py", "test_slow_pages.py", "test_time.py")
    shown = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "3 passed" in shown


def test_the_example_with_a_power_loss(tmp_path: Path) -> None:
    write(tmp_path, "keep_latest.py", "test_keep_latest.py")
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "1 passed" in run(tmp_path, *test)
    processor = tmp_path / "keep_latest.py"
    text = processor.read_text()
    assert text.count("file.sync()") == 1
    processor.write_text(text.replace("file.sync()", "pass"))
    with pytest.raises(AssertionError, match="test_the_file_has_the_old_or_the_new_content"):
        run(tmp_path, *test)


def test_the_example_without_pytest(tmp_path: Path) -> None:
    write(tmp_path, "check.py")
    assert run(tmp_path, "-W", "error", "check.py").startswith("1 message at 127.0.0.1:")


def test_the_example_with_sql(tmp_path: Path, shared_spark: str) -> None:
    write(tmp_path, "conftest.py", "test_clicks.py")
    variables = f'{{"PENSTOCK_SPARK_CONNECT": {shared_spark!r}}}'
    conftest = tmp_path / "conftest.py"
    given = conftest.read_text()
    assert given.count("return {") == 1
    conftest.write_text(re.sub(r"return \{.*\}", lambda _: f"return {variables}", given))
    shown = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "1 passed" in shown

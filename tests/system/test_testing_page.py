"""The examples of the page about tests that `test_manual` does not run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown_kit import ROOT, fences

pytestmark = pytest.mark.system

PAGE = ROOT / "docs" / "howto" / "test-your-programs.md"
FILES = {fence.title: fence.text for fence in fences(PAGE) if fence.title}


def run_tests(folder: Path) -> str:
    """Run the tests of a folder; fail if one of them fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_with_a_power_loss_fails_without_a_sync(tmp_path: Path) -> None:
    processor = FILES["keep_latest.py"]
    assert processor.count("file.sync()") == 1
    (tmp_path / "keep_latest.py").write_text(processor.replace("file.sync()", "pass"))
    (tmp_path / "test_keep_latest.py").write_text(FILES["test_keep_latest.py"])
    with pytest.raises(AssertionError, match="test_the_file_has_the_old_or_the_new_content"):
        run_tests(tmp_path)


def test_the_example_with_sql(tmp_path: Path, shared_spark: str) -> None:
    (tmp_path / "test_clicks.py").write_text(FILES["test_clicks.py"])
    conftest = FILES["with_options/conftest.py"]
    variables = f'{{"PENSTOCK_SPARK_CONNECT": {shared_spark!r}}}'
    assert conftest.count("return {") == 1
    text = re.sub(r"return \{.*\}", lambda _: f"return {variables}", conftest)
    (tmp_path / "conftest.py").write_text(text)
    assert "1 passed" in run_tests(tmp_path)

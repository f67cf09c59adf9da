"""The committed console is what its sources give, within its size."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "console"
BUNDLE = ROOT / "src" / "penstock" / "services" / "console"
EDITORS_ONLY = ("editors",)
"""Beginnings of the names of files that only pages with an editor load."""
BYTES_MAX, BYTES_WITHOUT_EDITORS_MAX = 300 << 10, 120 << 10
"""Sizes packed by gzip, the maximum for a first visit over a slow line."""

pytestmark = pytest.mark.lint


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def node_modules() -> Path:
    found = SOURCES / "node_modules"
    if shutil.which("node") is None or not found.is_dir():
        pytest.skip("node or npm is missing: install both, and run make lint again")
    return found


def run(*command: str) -> None:
    ran = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_bundle_is_built_from_the_sources(node_modules: Path, tmp_path: Path) -> None:
    assert node_modules.is_dir()
    run("node", "build.mjs", str(tmp_path / "built"))
    assert files(tmp_path / "built") == files(BUNDLE), "run make console, and commit its result"


def test_the_types_are_right(node_modules: Path) -> None:
    run("node", str(node_modules / "typescript" / "bin" / "tsc"), "--noEmit")


def test_the_bundle_is_small() -> None:
    packed = {name: len(gzip.compress(content, 9)) for name, content in files(BUNDLE).items()}
    assert sum(packed.values()) <= BYTES_MAX, packed
    own = sum(size for name, size in packed.items() if not name.startswith(EDITORS_ONLY))
    assert own <= BYTES_WITHOUT_EDITORS_MAX, packed

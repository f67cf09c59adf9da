"""The lock files: every package has a hash, and `scripts/setup` refuses a package with another."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "project"
version = "1.0"
dependencies = ["locked"]
"""


def test_every_locked_package_has_a_hash() -> None:
    """Installers check the hashes that a lock file has; a package without one is not checked."""
    for path in (ROOT / "requirements.lock", ROOT / "tests/conformance/clients/requirements.lock"):
        packages = re.split(r"^(?=\S+==)", path.read_text(), flags=re.MULTILINE)
        assert not [one for one in packages if one.strip() and "--hash=sha256:" not in one]


def make_wheel(folder: Path) -> str:
    """Write the wheel of a package `locked` into a folder; return its SHA-256."""
    folder.mkdir()
    wheel = folder / "locked-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("locked.py", "")
        about = "locked-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: locked\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{about}/WHEEL", tag)
        names = ("locked.py", *(f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD")))
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def make_project(folder: Path, locked_hash: str) -> None:
    """Write a checkout that `scripts/setup` can install: its one dependency is locked."""
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts" / "setup")
    (folder / "scripts" / "find-java").write_text("#!/bin/sh\n")
    (folder / "scripts" / "find-java").chmod(0o755)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "project").mkdir()
    (folder / "project" / "__init__.py").touch()
    (folder / "requirements.lock").write_text(f"locked==1.0 \\\n    --hash=sha256:{locked_hash}\n")
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    # The installers and the build backend of the environment that runs the tests.
    scheme = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.mark.parametrize("right", [True, False], ids=["right hash", "wrong hash"])
def test_the_setup_installs_a_locked_package_only_with_its_hash(
    tmp_path: Path, *, right: bool
) -> None:
    wheels, project = tmp_path / "wheels", tmp_path / "project"
    found = make_wheel(wheels)
    make_project(project, found if right else "0" * len(found))
    variables = {"NO_INDEX": "1", "FIND_LINKS": str(wheels), "NO_BUILD_ISOLATION": "1"}
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        **{f"{tool}_{name}": value for tool in ("UV", "PIP") for name, value in variables.items()},
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "PIP_NO_CACHE_DIR": "1",
    }
    command = ["bash", str(project / "scripts" / "setup"), "demo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    installed = list(project.glob(".venv/lib/python*/site-packages/locked.py"))
    if right:
        assert done.returncode == 0, done.stderr
        assert installed
        return
    assert done.returncode == 1, done.stderr
    assert not installed
    # Both installers, of which the second runs if the first failed, name the reason.
    assert "Hash mismatch for `locked" in done.stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not (project / ".venv" / ".ready-demo").exists()

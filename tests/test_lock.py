"""The lock files: every package has a hash, and `scripts/setup` refuses a package with another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
dependencies = ["DEPENDENCY"]
"""


def test_every_locked_package_has_a_hash() -> None:
    """Installers check the hashes that a lock file has; a package without one is not checked."""
    clients = sorted((ROOT / "tests/conformance/clients").glob("*.lock"))
    assert clients
    for path in (ROOT / "requirements.lock", *clients):
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


def make_source(folder: Path) -> str:
    """Write the source of a package `pyspark` into a folder; return its SHA-256."""
    tree = folder / "pyspark-1.0"
    (tree / "pyspark").mkdir(parents=True)
    (tree / "pyspark" / "__init__.py").touch()
    about = "Metadata-Version: 2.1\nName: pyspark\nVersion: 1.0\n"
    (tree / "PKG-INFO").write_text(about)
    code = (
        "import os, tempfile\nfrom setuptools import setup\n"
        "if 'TOLD' in os.environ: open(os.environ['TOLD'], 'w').write(tempfile.gettempdir())\n"
        "setup(name='pyspark', version='1.0', packages=['pyspark'])"
    )
    (tree / "setup.py").write_text(code)
    packed = folder / "pyspark-1.0.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tree, tree.name)
    shutil.rmtree(tree)
    return hashlib.sha256(packed.read_bytes()).hexdigest()


def make_project(folder: Path, locked_hash: str, dependency: str = "locked") -> None:
    """Write a checkout that `scripts/setup` can install: its one dependency is locked."""
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts" / "setup")
    (folder / "scripts" / "find-java").write_text("#!/bin/sh\n")
    (folder / "scripts" / "find-java").chmod(0o755)
    (folder / "pyproject.toml").write_text(PROJECT.replace("DEPENDENCY", dependency))
    (folder / "project").mkdir()
    (folder / "project" / "__init__.py").touch()
    locked = f"{dependency}==1.0 \\\n    --hash=sha256:{locked_hash}\n"
    (folder / "requirements.lock").write_text(locked)
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    # The installers and the build backend of the environment that runs the tests.
    scheme = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")


def variables_of(project: Path, packages: Path) -> dict[str, str]:
    """Return the environment of a set-up in which a folder stands for the package index."""
    variables = {"NO_INDEX": "1", "FIND_LINKS": str(packages), "NO_BUILD_ISOLATION": "1"}
    caches = project.parent / "caches"
    return {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        **{f"{tool}_{name}": value for tool in ("UV", "PIP") for name, value in variables.items()},
        "UV_CACHE_DIR": str(caches / "uv"),
        "XDG_CACHE_HOME": str(caches),
        "PIP_NO_CACHE_DIR": "1",
    }


def set_up(project: Path, packages: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/setup demo` in a checkout; a folder stands for the package index."""
    environment = {**variables_of(project, packages), **more}
    command = ["bash", str(project / "scripts" / "setup"), "demo"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("right", [True, False], ids=["right hash", "wrong hash"])
def test_the_setup_installs_a_locked_package_only_with_its_hash(
    tmp_path: Path, *, right: bool
) -> None:
    wheels, project = tmp_path / "wheels", tmp_path / "project"
    found = make_wheel(wheels)
    make_project(project, found if right else "0" * len(found))
    done = set_up(project, wheels)
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


@dataclass(frozen=True)
class Built:
    """A set-up that has built the wheel of PySpark: a build takes most of the time of these tests.

    `source` is the hash of the source. `folder` has it, the checkout `first` and the caches.
    """

    folder: Path
    source: str

    def copy(self, folder: Path) -> None:
        """Copy the caches to another folder, below which a test has checkouts of its own."""
        shutil.copytree(self.folder / "caches", folder / "caches")


def kept_wheel(caches: Path) -> Path:
    (wheel,) = (caches / "penstock" / "wheels").glob("*/pyspark-1.0-*.whl")
    return wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    source = make_source(folder / "packages")
    make_project(folder / "first", source, "pyspark")
    done = set_up(folder / "first", folder / "packages")
    assert done.returncode == 0, done.stderr
    assert "building the wheel of PySpark" in done.stderr
    (folder / "packages" / "pyspark-1.0.tar.gz").rename(folder / "source.tar.gz")
    return Built(folder, source)


def test_the_wheel_of_pyspark_is_built_once_for_all_checkouts(built: Built, tmp_path: Path) -> None:
    built.copy(tmp_path)
    empty = tmp_path / "packages"
    empty.mkdir()
    for name in ("second", "third"):
        make_project(tmp_path / name, built.source, "pyspark")
    done = set_up(tmp_path / "second", empty)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "second").glob(".venv/lib/python*/site-packages/pyspark/__init__.py"))
    # A damaged wheel is not installed: without the source it cannot be built again.
    wheel = kept_wheel(tmp_path / "caches")
    wheel.write_bytes(wheel.read_bytes()[:-1])
    done = set_up(tmp_path / "third", empty)
    assert done.returncode == 1, done.stderr
    assert "the wheel of PySpark could not be built" in done.stderr


def test_the_wheel_of_pyspark_is_built_only_from_the_locked_source(tmp_path: Path) -> None:
    packages, project = tmp_path / "packages", tmp_path / "project"
    make_project(project, "0" * len(make_source(packages)), "pyspark")
    done = set_up(project, packages)
    assert done.returncode == 1, done.stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not list((tmp_path / "caches" / "penstock" / "wheels").iterdir())


def test_a_set_up_that_builds_the_wheel_later_keeps_the_one_that_another_uses(
    built: Built, tmp_path: Path
) -> None:
    """It replaced the wheel, whose hash the other one had in its lock: hash mismatch."""
    packages, caches, project = tmp_path / "packages", tmp_path / "caches", tmp_path / "later"
    packages.mkdir()
    shutil.copy(built.folder / "source.tar.gz", packages / "pyspark-1.0.tar.gz")
    make_project(project, built.source, "pyspark")
    script = project / "scripts" / "setup"
    begin = "    locked setuptools > .venv/setuptools.lock\n"
    assert begin in script.read_text()
    # It builds when the other one is done, though it found no wheel when it began.
    wait = f"    until [ -e {caches}/done ]; do sleep 0.1; done\n"
    script.write_text(script.read_text().replace(begin, wait + begin))
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(set_up, project, packages)
        wheels = caches / "penstock" / "wheels"
        try:
            while not list(wheels.glob("making.*")):
                assert not later.done(), later.result().stderr
                time.sleep(0.01)
            # The wheel of the other one, which was built meanwhile.
            kept = kept_wheel(built.folder / "caches").parent
            shutil.copytree(kept, wheels / kept.name)
            wheel = kept_wheel(caches)
            os.utime(wheel, (1, 1))
        finally:
            (caches / "done").touch()
        assert later.result().returncode == 0, later.result().stderr
    assert wheel.stat().st_mtime == 1
    assert not list(wheels.glob("making.*"))


def test_a_set_up_deletes_what_earlier_ones_left_and_nothing_of_other_projects(
    tmp_path: Path,
) -> None:
    packages, caches = tmp_path / "packages", tmp_path / "caches"
    source = make_source(packages)
    for name in ("other", "project"):
        make_project(tmp_path / name, source, "pyspark")
    # Without a folder for the wheel, uv builds it for itself, as it does in any other project.
    done = set_up(tmp_path / "other", packages, XDG_CACHE_HOME="/dev/null")
    assert done.returncode == 0, done.stderr
    kept = [one for one in (caches / "uv").rglob("*") if "pyspark" in one.name]
    assert kept
    wheels = caches / "penstock" / "wheels"
    for name in ("making.old", "making.new"):
        (wheels / name / "tmp").mkdir(parents=True)
    os.utime(wheels / "making.old", (1, 1))
    told = tmp_path / "told"
    done = set_up(tmp_path / "project", packages, TOLD=str(told))
    assert done.returncode == 0, done.stderr
    assert all(one.exists() for one in kept)
    assert [one.name for one in wheels.glob("making.*")] == ["making.new"]
    assert told.read_text().startswith(f"{wheels}/making.")


def waits_for_sleep(pid: int) -> bool:
    """Whether a shell waits for `sleep`; before, a signal might be taken only after the wait."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        commands = [Path(f"/proc/{child}/comm").read_text() for child in children]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return commands == ["sleep\n"] and state == "S"
    return False


def test_a_set_up_that_is_terminated_leaves_no_build(tmp_path: Path) -> None:
    packages, project = tmp_path / "packages", tmp_path / "project"
    make_project(project, make_source(packages), "pyspark")
    script = project / "scripts" / "setup"
    begin = "    locked setuptools > .venv/setuptools.lock\n"
    assert begin in script.read_text()
    script.write_text(script.read_text().replace(begin, "    sleep 600\n"))
    wheels = tmp_path / "caches" / "penstock" / "wheels"
    environment = variables_of(project, packages)
    with subprocess.Popen(
        ["bash", str(script), "demo"], env=environment, start_new_session=True
    ) as running:
        try:
            while not waits_for_sleep(running.pid):
                assert running.poll() is None
                time.sleep(0.01)
            assert list(wheels.glob("making.*/wheel"))
            running.terminate()
            assert running.wait(120) != 0
            assert not list(wheels.iterdir())
        finally:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(running.pid, signal.SIGKILL)


def test_an_environment_that_has_everything_needs_neither_source_nor_wheel(
    built: Built, tmp_path: Path
) -> None:
    """After an update of the checkout the set-up runs again, perhaps without a network."""
    project = built.folder / "first"
    done = set_up(project, tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "the wheel of PySpark could not be built" in done.stderr


def test_the_wheel_of_another_user_is_used(built: Built, tmp_path: Path) -> None:
    project, packages = tmp_path / "project", tmp_path / "packages"
    built.copy(tmp_path)
    packages.mkdir()
    make_project(project, built.source, "pyspark")
    # A program of this name stands for a folder whose time may not be changed.
    touch = tmp_path / "bin" / "touch"
    touch.parent.mkdir()
    wheels = tmp_path / "caches" / "penstock" / "wheels"
    refusing = f'case "$*" in *{wheels}*) exit 1;; esac\nexec {shutil.which("touch")} "$@"\n'
    touch.write_text(f"#!/bin/sh\n{refusing}")
    touch.chmod(0o755)
    done = set_up(project, packages, PATH=f"{touch.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr

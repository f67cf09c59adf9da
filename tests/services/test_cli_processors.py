"""`penstock processor`: what it prints, and that what it makes runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.flow.processor.documentation import describe
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.cli.processor.new_processor import new_files
from tests.docs.markdown_kit import fences

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_everything_is_documented(name: str) -> None:
    facts = describe(ProcessorRegistry(BUILTIN).find(name))
    assert facts.name == name
    assert facts.about.endswith(".")
    assert facts.tags
    assert facts.relationships
    for one in facts.properties:
        assert one.about, one.name
    assert all(facts.relationships.values())
    if "failure" in facts.relationships:
        assert "error.reason" in facts.writes_attributes


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["processor", "list", "rotat", "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == []
    assert run(["processor", "list", "nsq", "--json"]) == exit_codes.OK
    found = [row["processor"] for row in json.loads(capsys.readouterr().out)]
    assert {"ConsumeTopic", "PublishTopic"} <= set(found)
    assert run(["processor", "show", "TailFile"]) == exit_codes.OK
    shown = capsys.readouterr().out
    assert "rotation_grace (period; default '1 sec')" in shown
    assert run(["processor", "show", "TailFile", "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["input"] == "forbidden"


def test_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["processor", "show", "TailFiles"]) == exit_codes.FAILED
    assert "did you mean TailFile" in capsys.readouterr().err


def test_a_new_one_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["processor", "new", "CountWords", "--folder", str(tmp_path)]) == exit_codes.OK
    assert "count_words:CountWords" in capsys.readouterr().out
    files = ["count_words.py", "test_count_words.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(test, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert run(["processor", "new", "CountWords", "--folder", str(tmp_path)]) == exit_codes.FAILED
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["count", "Count-Words", "", "../X", "Cöunt", "A" + " " * 3])
def test_what_is_no_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["processor", "new", name, "--folder", str(tmp_path)]) == exit_codes.USAGE
    assert "invalid class name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "no")
    assert run(["processor", "new", "CountWords", "--folder", folder]) == exit_codes.USAGE
    assert "does not exist" in capsys.readouterr().err


def test_module_names() -> None:
    names = {"PutS3Object": "put_s3_object", "HTTPThing": "http_thing", "Class": "class_"}
    for name, module in names.items():
        assert list(new_files(name)) == [f"{module}.py", f"test_{module}.py"]


def test_the_commands_of_the_guide_find_a_class_of_a_listed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = fences(DOCS / "howto" / "write-a-processor.md")
    files = {fence.title: fence.text for fence in page if fence.title}
    (tmp_path / "count_words.py").write_text(files["processors/count_words.py"])
    (tmp_path / "words.yaml").write_text(files["words.yaml"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    listed = ["--flow-modules", f"{tmp_path}/"]
    validate = ["flow", "validate", str(tmp_path / "words.yaml")]
    assert run([*validate, *listed]) == exit_codes.OK
    assert "checked at apply: count_words:CountWords" in capsys.readouterr().out
    assert "count_words" not in sys.modules
    assert run(["processor", "show", "count_words:CountWords", *listed]) == exit_codes.OK
    assert "at_least" in capsys.readouterr().out
    del sys.modules["count_words"]
    assert run(validate) == exit_codes.USAGE
    assert "flows may not name module count_words" in capsys.readouterr().err
    assert run(["processor", "show", "count_words:CountWords"]) == exit_codes.USAGE
    monkeypatch.setenv("PENSTOCK_FLOW_MODULES", str(tmp_path))
    assert run(validate) == exit_codes.OK

"""Flows bring no code: which modules they may name, and which files they must not change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.processor import InvalidConfiguration, Processor, PropertyValue
from penstock.flow.processors.files.folders import open_folder
from penstock.flow.processors.files.get_files import FetchFile, GetFile
from penstock.flow.processors.files.put_file import PutFile
from penstock.flow.user_modules import SERVICE_MODULES, FlowModules
from penstock.flow.write_guard import WRITE_GUARD
from penstock.testing.flow import ProcessorRunner

SOURCE = "class Counter: ...\n"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a listed folder, with a module in it."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "flow_code_module.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    SERVICE_MODULES.set(FlowModules([str(folder)]))
    yield folder
    SERVICE_MODULES.set(FlowModules())
    WRITE_GUARD.set([])


# -- modules


def test_a_module_of_a_listed_folder_may_be_named(code: Path) -> None:
    modules = FlowModules([str(code)])
    modules.check("flow_code_module:Counter", "class")
    assert "flow_code_module" not in sys.modules
    with pytest.raises(NotFound, match="has no Missing"):
        modules.check("flow_code_module:Missing", "class")
    found = modules.load("flow_code_module:Counter", "class")
    del sys.modules["flow_code_module"]
    assert isinstance(found, type)


@pytest.mark.parametrize("path", ["os:system", "penstock.testing.flow:ProcessorRunner", "x:Y"])
def test_other_modules_may_not_be_named(code: Path, path: str) -> None:
    for use in (FlowModules([str(code)]).check, FlowModules([str(code)]).load):
        with pytest.raises(InvalidRequest, match="may not name module"):
            use(path, "class")


def test_a_package_is_listed_with_what_is_below_it() -> None:
    modules = FlowModules(["penstock.core"])
    modules.check("penstock.core.errors:NotFound", "class")
    for path in ("penstock.corex:A", "penstock.flow.flowfile:FlowFile", "penstock:core"):
        with pytest.raises(InvalidRequest, match="may not name"):
            modules.check(path, "class")


def test_a_module_with_the_name_of_another_is_refused(code: Path) -> None:
    (code / "json.py").write_text(SOURCE)
    with pytest.raises(InvalidRequest, match="rename it"):
        FlowModules([str(code)]).load("json:Counter", "class")


@pytest.mark.parametrize("is_package", [False, True])
def test_a_link_out_of_a_listed_folder_is_refused(
    code: Path, tmp_path: Path, is_package: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "__init__.py").write_text(SOURCE)
    (outside / "linked_module.py").write_text(SOURCE)
    name = "linked_package" if is_package else "linked_module"
    target = outside if is_package else outside / "linked_module.py"
    (code / (name if is_package else f"{name}.py")).symlink_to(target)
    with pytest.raises(InvalidRequest, match="may not name"):
        FlowModules([str(code)]).check(f"{name}:Counter", "class")


@pytest.mark.parametrize("entry", ["/no/such/folder", "no_such_package_of_ours"])
def test_an_entry_that_does_not_exist_is_refused(entry: str) -> None:
    with pytest.raises(InvalidRequest, match="--flow-modules"):
        FlowModules([entry])


# -- files


def refuses(processor: type[Processor], **properties: PropertyValue) -> bool:
    try:
        processor.configured(properties)
    except InvalidConfiguration as error:
        return "must not change files" in str(error)
    return False


def hostile_names(code: Path, tmp_path: Path) -> dict[str, str]:
    """Return other names of a listed folder."""
    (tmp_path / "link").symlink_to(code)
    (tmp_path / "chain").symlink_to(tmp_path / "link")
    (code / "deep").mkdir()
    return {
        "itself": str(code),
        "below": str(code / "new" / "folder"),
        "url": f"file://{code}",
        "local": f"local://{code}",
        "dots": f"{code}/./deep//",
        "up": f"{tmp_path}/other/../code",
        "link": str(tmp_path / "link"),
        "chain": str(tmp_path / "chain" / "deep"),
        "proc": f"/proc/self/root{code}",
        "relative": os.path.relpath(code),
    }


def test_put_file_cannot_write_into_a_listed_folder(code: Path, tmp_path: Path) -> None:
    before = sorted(code.rglob("*"))
    for name, folder in hostile_names(code, tmp_path).items():
        assert refuses(PutFile, folder=folder), name
        # An expression is known only when a FlowFile comes.
        with ProcessorRunner(PutFile, {"folder": "${where}", "conflict": "replace"}) as runner:
            runner.enqueue(b"import os", filename="flow_code_module.py", where=folder)
            runner.run_until_idle()
            assert runner.counts() == {"failure": 1}, name
    assert sorted(code.rglob("*")) == sorted([*before, code / "deep"])
    assert (code / "flow_code_module.py").read_text() == SOURCE


def test_no_flow_writes_where_python_imports_from_or_penstock_keeps_files(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    WRITE_GUARD.set([tmp_path / "data"])
    protected = [
        Path(penstock.__file__).parent / "flow",
        *(Path(entry) for entry in sys.path if Path(entry).is_absolute()),
        tmp_path / "data" / "run",
        tmp_path / "bytecode",
    ]
    assert all(refuses(PutFile, folder=str(folder)) for folder in protected)
    assert not refuses(PutFile, folder=str(tmp_path / "database"))


def test_files_of_a_listed_folder_are_not_moved_or_deleted(code: Path, tmp_path: Path) -> None:
    module = code / "flow_code_module.py"
    (tmp_path / "link").symlink_to(code)
    assert refuses(GetFile, folder=str(tmp_path / "link"))
    assert not refuses(GetFile, folder=str(code), keep_source=True)
    assert refuses(FetchFile, completion="move", move_to=str(code))
    (tmp_path / "new.py").write_text("import os")
    for file, properties in (
        (tmp_path / "new.py", {"completion": "move", "move_to": "${to}"}),
        (tmp_path / "link" / module.name, {"completion": "delete"}),
    ):
        with ProcessorRunner(FetchFile, properties) as runner:
            runner.enqueue(b"", {"file.path": str(file), "to": str(tmp_path / "link")})
            runner.run_until_idle()
        assert file.exists()
    assert [path.name for path in code.iterdir()] == [module.name]


def test_a_folder_that_becomes_a_link_while_a_file_is_written_is_noticed(
    code: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    class Swapping(PutFile):
        """Replaces the folder between the two checks."""

        def _is_wanted(self, *, exists: bool, path: str) -> bool:
            if any(out.glob(".*.part")):
                out.rename(tmp_path / "away")
                out.symlink_to(code)
            return super()._is_wanted(exists=exists, path=path)

    with ProcessorRunner(Swapping, {"folder": str(out)}) as runner:
        runner.enqueue(b"import os", filename="new.py")
        runner.run_until_idle()
        assert runner.counts() == {"failure": 1}
    assert [path.name for path in code.iterdir()] == ["flow_code_module.py"]


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("simplecache::https://example.org/x.py", {"simplecache": {"same_names": True}}),
        ("dir::{}", {}),
        ("dir://{}", {"target_protocol": "file"}),
        ("asynclocal://{}", {}),
        ("zip://x.py::{}/a.zip", {}),
        ("reference://", {"fo": "x"}),
        ("s3://bucket/x", {"protocol": "file"}),
        ("hdfs:///{}", {}),
        ("hdfs://host/{}", {"host": "file:///"}),
        ("hdfs://host/{}", {"extra_conf": {"fs.defaultFS": "file:///"}}),
        ("data:,x", {}),
    ],
)
def test_no_url_reaches_local_files_under_another_name(
    code: Path, where: str, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be opened"):
        open_folder(where.replace("{}", str(code)), options)

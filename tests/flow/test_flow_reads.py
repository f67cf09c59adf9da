"""Flows read no files of Penstock itself, no secrets, and nothing of the kernel's folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.read_guard import READ_GUARD, ReadCheck, ReadGuard
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.flow_model import Flow, Parameter
from penstock.flow.graph.parameters import ParameterValues
from penstock.flow.processor import InvalidConfiguration, Processor, PropertyValue
from penstock.flow.processors.files.folders import change_problems, open_folder
from penstock.flow.processors.files.get_files import FetchFile, GetFile, ListFiles
from penstock.flow.processors.files.tail_file import TailFile
from penstock.flow.write_guard import WRITE_GUARD, WriteGuard
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import open_guarded, read_guarded
from penstock.testing.flow import ProcessorRunner

ENVIRON = f"/proc/{os.getpid()}/environ"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Return a data folder with secrets; one part is on another disk."""
    folder = tmp_path / "data"
    (folder / "segments").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (folder / "run").symlink_to(tmp_path / "disk")
    for file in ("metadata.db", "run/options.json", "segments/part.json"):
        (folder / file).write_text("secret\n")
    (tmp_path / "token").write_text("secret\n")
    kept = (folder, folder / "run", tmp_path / "token")
    READ_GUARD.set(ReadGuard(tuple(map(str, kept))))
    yield folder
    READ_GUARD.set(ReadGuard())


def hostile_names(data: Path) -> dict[str, str]:
    """Return names of secrets."""
    above = data.parent
    (above / "link").symlink_to(data / "metadata.db")
    (above / "chain").symlink_to(above / "link")
    (above / "folder").symlink_to(data)
    (above / "root").symlink_to("/proc/self/root")
    (above / "hard").hardlink_to(above / "token")
    (above / "environ").symlink_to(ENVIRON)
    return {
        "itself": str(data / "metadata.db"),
        "dots": f"{above}/x/../data/./metadata.db",
        "link": str(above / "link"),
        "chain": str(above / "chain"),
        "folder": str(above / "folder" / "metadata.db"),
        "root": f"{above}/root{data}/metadata.db",
        "other disk": str(above / "disk" / "options.json"),
        "token": str(above / "token"),
        "hard link": str(above / "hard"),
        "environment": ENVIRON,
        "environment by a link": str(above / "environ"),
        "environment of a thread": f"/proc/self/task/{os.getpid()}/environ",
        "proc as a root": f"/proc/self/root{above}/disk/options.json",
        "descriptor": "/dev/fd/0",
        "setting": "/sys/kernel/mm/transparent_hugepage/enabled",
    }


def refuses(processor: type[Processor], **properties: PropertyValue) -> bool:
    try:
        processor.configured(properties)
    except InvalidConfiguration as error:
        return "must not read files" in str(error)
    return False


def test_a_flow_fetches_no_secret_under_any_name(data: Path) -> None:
    for name, path in hostile_names(data).items():
        assert refuses(FetchFile, file=path), name
        assert refuses(TailFile, file=path), name
        for where in (path, f"file://{path}"):
            with ProcessorRunner(FetchFile) as runner:
                runner.enqueue(b"", {"file.path": where})
                runner.run_until_idle()
                assert runner.counts() == {"failure": 1}, name
                assert (
                    "must not read files of" in runner.sent("failure")[0].attributes["error.reason"]
                )


def test_a_flow_lists_no_folder_with_secrets(data: Path) -> None:
    for folder in (data, data / "run", data.parent / "disk", Path(ENVIRON).parent):
        for processor in (ListFiles, GetFile):
            assert refuses(processor, folder=str(folder), keep_source=True) or refuses(
                processor, folder=str(folder)
            )
        with pytest.raises(InvalidRequest, match="must not read files of"):
            list(open_folder(str(folder)).walk(recurse=True, skipped=print))
    skipped: list[InvalidRequest] = []
    found = open_folder(str(data.parent)).walk(recurse=True, skipped=skipped.append)
    assert [one.name for one in found] == ["token"]
    assert len(skipped) == 2


def test_other_files_are_read(data: Path) -> None:
    path = data.parent / "database"
    path.write_text("rows")
    assert not refuses(FetchFile, file=str(path))
    assert b"".join(map(bytes, open_folder(str(path)).pieces())) == b"rows"


def test_segments_are_not_read(data: Path) -> None:
    assert refuses(FetchFile, file=str(data / "segments" / "part.json"))


KEPT_URL = "s3://bucket/penstock"


@pytest.mark.parametrize(
    ("url", "is_kept"),
    [
        ("s3://bucket/penstock", True),
        ("s3://bucket/penstock/clicks/a.parquet", True),
        ("s3a://bucket/penstock/clicks/a.parquet", True),
        ("S3://bucket//penstock//clicks", True),
        ("s3://bucket/penstock2/a.parquet", False),
        ("s3://bucket/other/penstock", False),
        ("s3://bucket", False),
        ("gs://bucket/penstock/a", False),
    ],
)
def test_urls_inside_of_the_deep_storage_are_not_read(url: str, is_kept: bool) -> None:
    check = ReadGuard(kept_urls=(KEPT_URL,)).now()
    with (
        pytest.raises(InvalidRequest, match="must not read files of") if is_kept else nullcontext()
    ):
        check.url(url, url)


def test_a_link_that_is_replaced_between_check_and_opening_is_noticed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = data.parent / "moving"
    link.write_text("rows")

    def swap(_self: ReadCheck, path: str) -> str:
        link.unlink()
        link.symlink_to(data / "metadata.db")
        return path

    monkeypatch.setattr(ReadCheck, "path", swap)
    with pytest.raises(InvalidRequest, match="must not read files of"):
        list(open_folder(str(link)).pieces())
    with pytest.raises(InvalidRequest, match="must not read files of"):
        open_guarded(OsFileSystem(), str(link), READ_GUARD.now())


def test_a_file_that_becomes_a_link_is_not_tailed(data: Path) -> None:
    path = data.parent / "app.log"
    path.write_text("one\n")
    with ProcessorRunner(TailFile, {"file": str(path)}, fs=OsFileSystem()) as runner:
        runner.run()
        path.unlink()
        path.symlink_to(data / "metadata.db")
        with pytest.raises(InvalidRequest, match="must not read files of"):
            runner.run()
        assert runner.counts() == {"success": 1}


def test_parameters_are_read_from_secret_files_but_not_from_those_of_penstock(data: Path) -> None:
    password = data.parent / "password"
    password.write_text("hush\n")

    def load(path: object) -> ParameterValues:
        flow = Flow(name="x", parameters={"p": Parameter(file=str(path))})
        fs = OsFileSystem()
        return ParameterValues.load_known(
            FlowIndex.of(flow), {}, lambda path: read_guarded(fs, path, READ_GUARD.now())
        )

    assert not load(password).missing
    for path in (data / "metadata.db", data.parent / "token", ENVIRON):
        (why,) = load(path).missing.values()
        assert "must not read files of" in why


def test_a_link_that_cannot_be_followed_is_a_mistake_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_path: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os.path, "realpath", refuse)
    for check in (WriteGuard().check, ReadGuard().now().path):
        with pytest.raises(InvalidRequest, match=r"cannot be followed \(Permission denied\)"):
            check("/proc/1/root/x")
    (problem,) = change_problems("folder", "/proc/1/root/x")
    assert "cannot be followed" in problem.message


def test_validation_knows_the_forms_of_local_urls(tmp_path: Path) -> None:
    WRITE_GUARD.set([tmp_path / "data"])
    try:
        for form in ("", "file:", "local:", "file://", "local://"):
            (problem,) = change_problems("folder", f"{form}{tmp_path}/data")
            assert "must not change files" in problem.message, form
    finally:
        WRITE_GUARD.set([])

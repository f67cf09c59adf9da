"""Checks of `penstock doctor`: the data folder, Java and the start of Spark."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.services import doctor
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.tls_authority import TlsAuthority
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.spark.connect import spark_server
from penstock.spark.connect.java import REMEDY, JavaRuntime
from penstock.testing.clock import VirtualClock

Capture = pytest.CaptureFixture[str]


def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> JavaRuntime:
        raise Unavailable(f"Spark needs Java 17 or newer, and there is none: {REMEDY}")

    monkeypatch.setattr(doctor, "find_java", none)


def test_doctor_says_each_mend_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    found = list(doctor.examine(PenstockOptions(data_dir=tmp_path), {}, SystemClock()))
    java = next(one for one in found if one.subject == "Java")
    assert java.text == "Spark needs Java 17 or newer, and there is none"
    assert java.remedy == REMEDY


def test_doctor_checks_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)
    options, clock = PenstockOptions(data_dir=tmp_path), VirtualClock(SystemClock().now_ms())

    def certificate() -> doctor.Finding | None:
        found = list(doctor.examine(options, {}, clock))
        return next((one for one in found if one.subject == "certificate"), None)

    assert certificate() is None
    authority = TlsAuthority(tmp_path / "tls", clock)
    authority.create()
    lacking = certificate()
    assert lacking is not None
    assert lacking.remedy == "run penstock tls init"
    authority.issue(["a.example"])
    good = certificate()
    assert good is not None
    assert good.verdict is doctor.DoctorVerdict.OK
    assert "a.example" in good.text
    clock.advance(61 * 86_400)
    assert certificate().verdict is doctor.DoctorVerdict.OK  # type: ignore[union-attr]
    (tmp_path / "tls" / "authority.key").unlink()
    due = certificate()
    assert due is not None
    assert due.verdict is doctor.DoctorVerdict.WARNING
    clock.advance(30 * 86_400)
    expired = certificate()
    assert expired is not None
    assert expired.verdict is doctor.DoctorVerdict.FAILED


def test_doctor_shows_no_token(tmp_path: Path) -> None:
    addresses = ("sc://lake:15002/;token=hidden", "sc://other:15002/;use_ssl=true;x-auth=hidden")
    options = PenstockOptions(
        data_dir=tmp_path, spark_connect=addresses[0], query_connect=addresses[1]
    )
    texts = [one.text for one in doctor.examine(options, {}, SystemClock())]
    assert "not needed: Spark is at sc://lake:15002" in texts
    assert any("sc://other:15002" in text for text in texts)
    assert not any("hidden" in text for text in texts)


def test_doctor_tells_which_secret_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(monkeypatch)
    options = PenstockOptions(data_dir=tmp_path, token="secret://absent")
    found = list(doctor.examine(options, {}, SystemClock()))
    one = next(one for one in found if one.subject == "secrets")
    assert "unknown secret 'absent'" in one.text
    assert "penstock secret set" in one.remedy


def test_doctor_checks_a_machine_whose_server_belongs_to_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(monkeypatch)
    read_text = Path.read_text

    def refuse(self: Path, encoding: str | None = None) -> str:
        if self.name == "penstock.json":
            raise PermissionError(13, "Permission denied")
        return read_text(self, encoding)

    monkeypatch.setattr(Path, "read_text", refuse)
    found = {
        one.subject: one
        for one in doctor.examine(PenstockOptions(data_dir=tmp_path), {}, SystemClock())
    }
    assert found["Python"].passes
    assert found["server"].text.endswith("cannot be read (Permission denied)")
    assert found["server"].remedy == "run this command as the user that runs Penstock"
    assert "Spark starts" not in found  # the server may run
    assert not any(subject.startswith("port ") for subject in found)


def test_doctor_starts_spark_as_up_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anywhere = HostPort("127.0.0.1", 0)
    folder = tmp_path / "a b#ü%20%"
    options = PenstockOptions(
        data_dir=folder,
        http=anywhere,
        broker_http=anywhere,
        broker_tcp=anywhere,
        spark_java_options=("-XX:+NoSuchOption",),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = list(doctor.examine(options, os.environ, SystemClock()))
    start = next(one for one in found if one.subject == "Spark starts")
    assert start.verdict is doctor.DoctorVerdict.FAILED
    assert "Unrecognized VM option 'NoSuchOption'" in start.text
    assert not folder.exists()
    assert [one for one in tmp_path.iterdir() if "doctor" in one.name] == []


def test_doctor_makes_the_class_archive_for_which_no_stop_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    class Started:
        def __init__(self, options: spark_server.SparkServerOptions, *_: object) -> None:
            assert not options.may_make_archive

        def start(self) -> None:
            pass

        def wait_ready(self, _timeout_s: float) -> None:
            pass

        def stop(self, _timeout_s: float) -> None:
            pass

    def prepare_spark(folder: Path, *_: object) -> bool:
        made.append(folder)
        return True

    monkeypatch.setattr(spark_server, "SparkServer", Started)
    monkeypatch.setattr(spark_server, "prepare_spark", prepare_spark)
    anywhere = HostPort("127.0.0.1", 0)
    options = PenstockOptions(
        data_dir=tmp_path / "data", http=anywhere, broker_http=anywhere, broker_tcp=anywhere
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    findings = doctor.examine(options, environment, SystemClock())
    first = next(findings)
    assert not made  # it is yielded before the checks that take long
    found = [first, *findings]
    start = next(one for one in found if one.subject == "Spark starts")
    assert made == [tmp_path / "penstock"]
    assert start.text.endswith("its class archive was created, so later starts take half the time")

    def fail(*_: object) -> bool:
        raise Unavailable("Spark did not write its class archive: free some space")

    monkeypatch.setattr(spark_server, "prepare_spark", fail)
    found = list(doctor.examine(options, environment, SystemClock()))
    start = next(one for one in found if one.subject == "Spark starts")
    assert start.verdict is doctor.DoctorVerdict.OK
    assert start.text.endswith(
        "class archive cannot be created: Spark did not write its class archive: free some space"
    )


def format_zero(data: Path) -> None:
    (data / "format.json").write_text('{"format": 0}')


def no_metadata(data: Path) -> None:
    DataFolder(data).prepare()
    segment = data / "segments/d/2013/v/0/u/part.parquet"
    segment.parent.mkdir(parents=True)
    segment.touch()


def no_format(data: Path) -> None:
    for name in ("topics", "segments", "log"):
        (data / name).mkdir()


def not_ours(data: Path) -> None:
    (data / "diary.txt").touch()


def half_restored(data: Path) -> None:
    DataFolder(data).prepare()
    (data / "restoring.json").write_text("{}")


@pytest.mark.parametrize(
    "damage",
    [format_zero, no_metadata, no_format, not_ours, half_restored],
    ids=lambda f: f.__name__,
)
def test_doctor_refuses_a_data_folder_with_the_reason_that_up_gives(
    damage: Callable[[Path], None],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_java(monkeypatch)
    data = tmp_path / "data"
    data.mkdir()
    damage(data)
    files = sorted(data.rglob("*"))
    found = list(doctor.examine(PenstockOptions(data_dir=data), {}, SystemClock()))
    folder = next(one for one in found if one.subject == "data folder")
    assert sorted(data.rglob("*")) == files
    assert folder.verdict is doctor.DoctorVerdict.FAILED
    assert run(["up", "--data-dir", str(data)]) == exit_codes.USAGE
    assert folder.text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "client_file"),
    [
        (PenstockOptions(metadata_url="postgresql+psycopg://h/d"), None),
        (PenstockOptions(), '{"broker_http": "http://127.0.0.1:1"}'),
    ],
    ids=["metadata elsewhere", "a broker that runs alone"],
)
def test_doctor_accepts_segments_without_metadata_that_is_not_expected_beside_them(
    options: PenstockOptions,
    client_file: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_java(monkeypatch)
    no_metadata(tmp_path)
    if client_file is not None:
        (tmp_path / "penstock.json").write_text(client_file)
    found = list(doctor.examine(dataclasses.replace(options, data_dir=tmp_path), {}, SystemClock()))
    folder = next(one for one in found if one.subject == "data folder")
    assert (folder.verdict, folder.text) == (doctor.DoctorVerdict.OK, f"{tmp_path}, format 1")


def test_doctor_accepts_a_data_folder_that_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(monkeypatch)
    for data, text in ((tmp_path, "is empty"), (tmp_path / "data", "will be created")):
        found = list(doctor.examine(PenstockOptions(data_dir=data), {}, SystemClock()))
        folder = next(one for one in found if one.subject == "data folder")
        assert folder.verdict is doctor.DoctorVerdict.OK
        assert text in folder.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query_memory", "total_bytes", "verdict", "text"),
    [
        (None, 1 << 30, doctor.DoctorVerdict.WARNING, "1.0 GiB of memory are less than the"),
        (None, None, doctor.DoctorVerdict.WARNING, "the memory of this host is unknown"),
        (
            None,
            64 << 30,
            doctor.DoctorVerdict.OK,
            "a Spark of their own with 2g: 64.0 GiB of memory",
        ),
        ("none", 64 << 30, doctor.DoctorVerdict.OK, "share one Spark: --query-memory none"),
    ],
)
def test_doctor_gives_the_reason_why_queries_share_the_spark_of_tasks_or_not(
    query_memory: str | None,
    total_bytes: int | None,
    verdict: doctor.DoctorVerdict,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_java(monkeypatch)
    monkeypatch.setattr(doctor, "total_memory_bytes", lambda: total_bytes)
    options = PenstockOptions(data_dir=tmp_path, query_memory=query_memory)
    found = list(doctor.examine(options, {}, SystemClock()))
    queries = next(one for one in found if one.subject == "queries")
    assert queries.verdict is verdict
    assert text in queries.text
    assert ("--query-memory 1g" in queries.remedy) == (verdict is doctor.DoctorVerdict.WARNING)


def test_doctor_checks_the_files_of_access(tmp_path: Path) -> None:
    def access() -> doctor.Finding:
        found = doctor._access(PenstockOptions(data_dir=tmp_path), SystemClock())
        assert found.subject == "access"
        return found

    assert access().text.startswith("not configured")
    rules = tmp_path / "access" / "access.toml"
    rules.parent.mkdir()
    rules.write_text("[roles.a]\nallow = ['read *']")
    assert (access().passes, access().text) == (True, "0 users, 0 tokens, 1 role")
    rules.write_text("[roles.a]\nalow = ['read *']")
    found = access()
    assert not found.passes
    assert found.text == f"{rules}: roles.a: unknown key 'alow'"
    assert found.remedy.startswith("use about")

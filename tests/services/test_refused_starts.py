"""Starts of `penstock up` that are refused: the reason, and what they leave unchanged."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, InvalidRequest
from penstock.segments import remote_files
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.host import up as up_module
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.process import listen
from penstock.services.host.up import up
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.storage.disk import OsFileSystem


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PenstockOptions:
    # Otherwise a start that is wrongly accepted would launch processes, and the test's log would
    # be replaced by a file.
    monkeypatch.setattr(up_module, "log_to_file", lambda _path: None)
    monkeypatch.setattr(up_module, "AFTER_KILL_S", 0.0)
    monkeypatch.setattr(up_module, "Launcher", None)
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    anywhere = HostPort("127.0.0.1", 0)
    return PenstockOptions(
        data_dir=folder.path, http=anywhere, broker_http=anywhere, broker_tcp=anywhere
    )


def start(options: PenstockOptions) -> None:
    up(options, {"PATH": os.environ["PATH"]}, SystemClock(), lambda _line: None)


def test_a_broker_that_runs_alone_keeps_its_addresses(given: PenstockOptions) -> None:
    folder = DataFolder(given.data_dir)
    addresses = {"pid": 4321, "broker_http": "http://127.0.0.1:4151"}
    folder.write_client_file(addresses)
    folder.topics.mkdir(exist_ok=True)
    lock = OsFileSystem().lock_folder(str(folder.topics))
    with pytest.raises(Conflict, match=r"server broker \(process 4321\) runs in .*kill 4321"):
        start(given)
    lock.release()
    assert folder.read_client_file() == addresses


def test_a_start_without_its_port_keeps_the_addresses_of_another_server(
    given: PenstockOptions,
) -> None:
    folder = DataFolder(given.data_dir)
    folder.write_client_file({"pid": 4321})
    with listen(HostPort("127.0.0.1", 0), "--http") as taken:
        port = HostPort("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Conflict, match=r"is taken"):
            start(dataclasses.replace(given, broker_http=port))
    assert folder.read_client_file() == {"pid": 4321}


@pytest.mark.parametrize("second", ["broker_http", "broker_tcp"])
def test_two_options_with_one_port_are_named(given: PenstockOptions, second: str) -> None:
    with listen(HostPort("127.0.0.1", 0), "--http") as free:
        port = HostPort("127.0.0.1", free.getsockname()[1])
    options = dataclasses.replace(given, http=port, **{second: port})  # type: ignore[arg-type]
    flag = f"--{second.replace('_', '-')}"
    with pytest.raises(InvalidRequest, match=rf"^--http and {flag} both have port {port.port}:"):
        start(options)


def test_two_options_may_have_one_port_of_different_hosts(given: PenstockOptions) -> None:
    """If another program has one of the addresses, the options are not why."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        options = dataclasses.replace(
            given, http=HostPort("127.0.0.1", port), broker_http=HostPort("127.0.0.2", port)
        )
        with pytest.raises(Conflict, match=r"is taken"):
            start(options)
    everywhere = HostPort("0.0.0.0", port)
    options = dataclasses.replace(options, broker_http=everywhere, insecure=True)
    with pytest.raises(InvalidRequest, match=r"^--http and --broker-http both have port"):
        start(options)


@pytest.mark.parametrize("store", ["deep_storage", "task_logs"])
def test_a_store_whose_package_is_missing_is_refused_before_anything_is_made(
    given: PenstockOptions, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "find_spec", lambda _package: None)
    folder = given.data_dir.parent / "new"
    for url in ("s3://lake/x", "simplecache::s3://lake/x"):
        options = dataclasses.replace(given, data_dir=folder, **{store: url})
        with pytest.raises(InvalidRequest, match=rf"'{url}'.*pip install 'penstock-io\[s3\]'"):
            start(options)
    with pytest.raises(InvalidRequest, match=r"'nosuch://x' \(Protocol not known"):
        start(dataclasses.replace(options, **{store: "nosuch://x"}))
    assert not folder.exists()


def test_the_check_of_the_stores_does_not_import_their_packages() -> None:
    script = (
        "import sys\n"
        "from penstock.services.host.up import require_store_packages\n"
        "from penstock.services.options.table import PenstockOptions\n"
        "logs = 'simplecache::s3://b'\n"
        "require_store_packages(PenstockOptions(deep_storage='s3://a', task_logs=logs))\n"
        "print('s3fs' in sys.modules, 'botocore' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("option", ["--url", "--broker-url"])
@pytest.mark.parametrize("command", [["up"], ["server", "broker"]])
def test_a_command_that_starts_a_server_refuses_the_address_of_one(
    command: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    # Another wrong option, so that nothing starts where the address is ignored.
    words = [*command, option, "http://h:1", "--data-dir", str(folder), "--http", "nonsense"]
    assert run(words) == exit_codes.USAGE
    assert f"{option} http://h:1 names a running server" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["access.toml", "credentials.json"])
def test_an_invalid_file_of_access_refuses_the_start(given: PenstockOptions, name: str) -> None:
    file = given.access_path / name
    file.parent.mkdir(mode=0o700)
    file.write_text("x")
    file.chmod(0o600)
    with pytest.raises(InvalidRequest, match=re.escape(str(file))):
        start(given)
    secret = given.access_path / "operator.token"
    assert secret.read_text().startswith("penstock_operator_")
    assert DataFolder(given.data_dir).live_holder() is None

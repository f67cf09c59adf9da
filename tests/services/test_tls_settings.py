"""Which files TLS uses, which addresses need it, and what `--insecure` allows."""

from __future__ import annotations

import dataclasses
import logging
import socket
from pathlib import Path

import pytest

from penstock.broker.security.tls import Requirement
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.credentials import CredentialFile
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.tls_trust import TRUST, is_reachable
from penstock.services.host import up
from penstock.services.host.tls_authority import TlsAuthority
from penstock.services.host.tls_settings import (
    certificate_names,
    require_protection,
    server_options,
    server_tls,
    trust_settings,
)
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.testing.clock import VirtualClock

EVERYWHERE = HostPort("0.0.0.0", 8888)
ON_LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
ELSEWHERE = ("0.0.0.0", "::", "10.1.2.3", "fd00::1", "no-such-host.invalid")


@pytest.fixture
def bare(tmp_path: Path) -> PenstockOptions:
    return PenstockOptions(data_dir=tmp_path / "data")


@pytest.fixture
def secured(bare: PenstockOptions) -> PenstockOptions:
    """With a certificate and a token."""
    authority = TlsAuthority(bare.data_dir / "tls", SystemClock())
    authority.create()
    authority.issue()
    return dataclasses.replace(bare, token="s")


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(host: str, *_: object, **__: object) -> object:
        raise socket.gaierror(host)

    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.mark.parametrize("host", ON_LOOPBACK)
def test_loopback_needs_nothing(bare: PenstockOptions, host: str) -> None:
    assert not is_reachable(host)
    assert require_protection(bare, [(HostPort(host, 1), "--http")]) == []


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_addresses_need_tls_and_a_token(
    bare: PenstockOptions, secured: PenstockOptions, host: str
) -> None:
    ports = [(HostPort("127.0.0.1", 1), "--http"), (HostPort(host, 2), "--broker-http")]
    assert require_protection(secured, ports) == []
    without_token = dataclasses.replace(secured, token=None)
    for options, lack in (
        (without_token, r"they need no token or certificate.*--token-file"),
        (dataclasses.replace(bare, data_dir=Path("nowhere"), token="s"), r"penstock tls init"),
    ):
        with pytest.raises(InvalidRequest, match=rf"^--broker-http: .*{lack}.*--insecure"):
            require_protection(options, ports)


@pytest.mark.parametrize(
    ("required", "is_enough"),
    [("remote", True), ("true", True), ("false", False), ("tcp-https", False)],
)
def test_tls_must_be_required_of_other_hosts(
    secured: PenstockOptions, required: str, is_enough: bool
) -> None:
    options = dataclasses.replace(secured, tls_required=required)
    if is_enough:
        assert require_protection(options, [(EVERYWHERE, "--http")]) == []
        return
    with pytest.raises(InvalidRequest, match=rf"--tls-required {required} lets them"):
        require_protection(options, [(EVERYWHERE, "--http")])


def test_certificates_of_clients_are_an_authenticator(secured: PenstockOptions) -> None:
    options = dataclasses.replace(secured, token=None, tls_client_auth_policy="require-verify")
    assert require_protection(options, [(EVERYWHERE, "--http")]) == []


def test_configured_access_is_an_authenticator(secured: PenstockOptions) -> None:
    options, ports = dataclasses.replace(secured, token=None), [(EVERYWHERE, "--http")]
    folder = AccessFolder(options.access_path)
    folder.make_secrets(SystemClock())  # those of every server are not enough
    with pytest.raises(InvalidRequest, match=r"they need no token"):
        require_protection(options, ports)
    file = CredentialFile(folder.credentials, SystemClock())
    file.add_token("ci", ("publisher",))
    assert require_protection(options, ports) == []
    folder.credentials.write_text("damaged")  # then servers let nobody in
    assert require_protection(options, ports) == []
    folder.credentials.unlink()
    folder.rules.write_text("")
    assert require_protection(options, ports) == []


def test_insecure_is_a_warning_for_each_lack(bare: PenstockOptions) -> None:
    options = dataclasses.replace(bare, insecure=True)
    found = require_protection(options, [(EVERYWHERE, "--http"), (HostPort("::1", 1), "--x")])
    assert len(found) == 2
    assert all(
        one.startswith("--insecure: other hosts can reach --http 0.0.0.0:8888") for one in found
    )


@pytest.mark.parametrize(
    ("address", "is_plain"),
    [
        ("sc://spark.example:15002", True),
        ("sc://spark.example:15002/;use_ssl=false", True),
        ("sc://spark.example:15002/;use_ssl=true", False),
        ("sc://spark.example:15002/;token=x", False),
        ("sc://localhost:15002", False),
        ("sc://127.0.0.1:15002", False),
    ],
)
@pytest.mark.parametrize("option", ["spark_connect", "query_connect"])
def test_a_spark_of_another_host_needs_tls(
    bare: PenstockOptions, option: str, address: str, is_plain: bool
) -> None:
    options = dataclasses.replace(bare, **{option: address})  # type: ignore[arg-type]
    flag = f"--{option.replace('_', '-')}"
    if not is_plain:
        assert require_protection(options, []) == []
        return
    with pytest.raises(InvalidRequest, match=rf"^{flag}: .*not encrypted: add /;use_ssl=true"):
        require_protection(options, [])
    assert len(require_protection(dataclasses.replace(options, insecure=True), [])) == 1


def test_insecure_is_given_as_true_everywhere(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("insecure = true")
    assert resolution.resolve({}, {}, config).insecure is True
    assert resolution.resolve({}, {"PENSTOCK_INSECURE": "false"}, config).insecure is False
    assert resolution.resolve({"insecure": True}, {"PENSTOCK_INSECURE": "false"}).insecure is True
    options = PenstockOptions(insecure=True)
    assert resolution.from_json(resolution.to_json(options)) == options
    with pytest.raises(InvalidRequest, match=r"not one of true, false"):
        resolution.resolve({}, {"PENSTOCK_INSECURE": "maybe"})


@pytest.mark.parametrize("option", ["http", "broker_http", "broker_tcp"])
def test_up_refuses_before_anything_starts(bare: PenstockOptions, option: str) -> None:
    bare.data_dir.mkdir()
    flag = f"--{option.replace('_', '-')}"
    options = dataclasses.replace(bare, metadata_url="sqlite:///x", **{option: EVERYWHERE})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=rf"^{flag}: other hosts can reach 0\.0\.0\.0:8888"):
        up.up(options, {}, VirtualClock(), lambda _line: None)


# -- files


def test_without_files_there_is_no_tls(bare: PenstockOptions) -> None:
    assert server_options(bare).certificate is None
    assert server_options(bare).requirement is Requirement.NOBODY
    assert server_tls(bare, SystemClock()) is None
    assert trust_settings(bare).authorities is None


def test_the_folder_of_the_authority_is_used(secured: PenstockOptions) -> None:
    folder = secured.data_dir / "tls"
    options = server_options(secured)
    assert options.certificate == str(folder / "server.pem")
    assert options.key is None
    assert options.requirement is Requirement.REMOTE
    trust = trust_settings(secured)
    assert trust.authorities == str(folder / "authority.crt")
    assert trust.certificate == str(folder / "server.pem")
    asks = dataclasses.replace(secured, tls_client_auth_policy="require-verify")
    assert server_options(asks).root_ca == str(folder / "authority.crt")


def test_options_come_before_the_folder(secured: PenstockOptions) -> None:
    given = dataclasses.replace(secured, tls_cert=Path("c"), tls_key=Path("k"), tls_ca=Path("a"))
    assert server_options(given).files == ("c", "k")
    assert trust_settings(given).authorities == "a"
    # The certificate of the options has another authority than that of the folder.
    assert trust_settings(dataclasses.replace(given, tls_ca=None)).authorities is None


@pytest.mark.parametrize(
    ("changes", "uses_tls"),
    [
        ({}, True),
        ({"insecure": True}, False),
        ({"insecure": True, "tls_ca": Path("a")}, True),
        ({"insecure": True, "tls_cert": Path("c")}, True),
    ],
)
def test_other_hosts_are_reached_under_tls(
    bare: PenstockOptions, changes: dict[str, object], uses_tls: bool
) -> None:
    options = dataclasses.replace(bare, **changes)  # type: ignore[arg-type]
    assert trust_settings(options).uses_tls is uses_tls
    before = TRUST.settings
    try:
        TRUST.set(trust_settings(options))
        scheme = "https" if uses_tls else "http"
        assert HostPort("broker", 4151).url == f"{scheme}://broker:4151"
        assert HostPort("0.0.0.0", 4151).url == "http://127.0.0.1:4151"
    finally:
        TRUST.set(before)


def test_a_start_renews_what_is_due(secured: PenstockOptions) -> None:
    pem = secured.data_dir / "tls" / "server.pem"
    first = pem.read_bytes()
    named = dataclasses.replace(secured, allowed_hosts=("b.example",), http=HostPort("10.1.2.3", 1))
    assert server_tls(named, SystemClock()) is not None
    authority = TlsAuthority(pem.parent, SystemClock())
    current = authority.current()
    assert current is not None
    assert {"b.example", "10.1.2.3", socket.gethostname()} <= set(current.names)
    assert pem.read_bytes() != first
    second = pem.read_bytes()
    assert server_tls(named, SystemClock()) is not None
    assert pem.read_bytes() == second


def test_a_host_without_the_key_uses_its_certificate(secured: PenstockOptions) -> None:
    folder = secured.data_dir / "tls"
    (folder / "authority.key").unlink()
    before = (folder / "server.pem").read_bytes()
    named = dataclasses.replace(secured, allowed_hosts=("b.example",))
    assert server_tls(named, SystemClock()) is not None
    assert (folder / "server.pem").read_bytes() == before


def test_a_renewal_that_fails_is_reported_and_the_old_one_stays(
    secured: PenstockOptions, caplog: pytest.LogCaptureFixture
) -> None:
    folder = secured.data_dir / "tls"
    tls = server_tls(secured, SystemClock())
    assert tls is not None
    context = tls.context
    (folder / "authority.key").write_text("damaged")
    (folder / "server.pem").unlink()
    caplog.set_level(logging.WARNING)
    assert tls._before_look is not None
    tls._before_look()
    assert not tls.refresh()
    assert "cannot be renewed" in caplog.text
    assert tls.context is context


def test_a_start_goes_on_with_a_valid_certificate_that_cannot_be_renewed(
    secured: PenstockOptions, caplog: pytest.LogCaptureFixture
) -> None:
    folder = secured.data_dir / "tls"
    (folder / "authority.key").write_text("damaged")
    caplog.set_level(logging.WARNING)
    named = dataclasses.replace(secured, allowed_hosts=("b.example",))
    assert server_tls(named, SystemClock()) is not None
    assert "cannot be renewed" in caplog.text
    (folder / "server.pem").unlink()
    with pytest.raises(InvalidRequest, match=r"cannot be used"):
        server_tls(named, SystemClock())


def test_names_are_those_by_which_clients_reach_the_host(bare: PenstockOptions) -> None:
    options = dataclasses.replace(
        bare,
        http=EVERYWHERE,
        broker_http=HostPort("10.1.2.3", 1),
        broker_tcp=HostPort("127.0.0.1", 1),
        allowed_hosts=("*.example.com",),
        broadcast_address="broker.example.com",
    )
    names = certificate_names(options)
    assert names == (socket.gethostname(), "*.example.com", "10.1.2.3", "broker.example.com")


def test_drivers_of_flight_sql_use_tls_if_there_is_a_certificate(secured: PenstockOptions) -> None:
    address = HostPort("127.0.0.1", 8815)
    assert up.flight_url(address, None) == "grpc://127.0.0.1:8815"
    assert up.flight_url(address, server_tls(secured, SystemClock())) == "grpc+tls://127.0.0.1:8815"

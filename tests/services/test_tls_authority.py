"""The installation's own authority: what it issues, when it renews, what it refuses."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.core.tls_trust import client_context
from penstock.services.cli.command_options import CLI
from penstock.services.cli.entry import run
from penstock.services.host.tls_authority import (
    AUTHORITY_DAYS,
    RENEW_DAYS,
    SERVER_DAYS,
    ServerCertificate,
    TlsAuthority,
)
from penstock.testing.clock import VirtualClock

DAY_S = 86_400


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def authority(tmp_path: Path, clock: VirtualClock) -> TlsAuthority:
    made = TlsAuthority(tmp_path / "tls", clock)
    assert made.create()
    return made


def issued_by(authority: TlsAuthority) -> x509.Certificate:
    return x509.load_pem_x509_certificate((authority.folder / "server.pem").read_bytes())


def test_only_the_owner_can_read_the_folder(authority: TlsAuthority) -> None:
    authority.issue()
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    names = sorted(one.name for one in authority.folder.iterdir())
    assert names == ["authority.crt", "authority.key", "lock", "server.pem"]
    assert {stat.S_IMODE(one.stat().st_mode) for one in authority.folder.iterdir()} == {0o600}


def test_keys_and_lifetimes(authority: TlsAuthority, clock: VirtualClock) -> None:
    authority.issue(["penstock.example", "*.penstock.example", "10.1.2.3", "fd00::7"])
    root = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    leaf = issued_by(authority)
    for one in (root, leaf):
        key = one.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    leaf.verify_directly_issued_by(root)
    limits = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert (root.not_valid_after_utc - root.not_valid_before_utc).days == AUTHORITY_DAYS
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == SERVER_DAYS
    current = authority.current()
    assert current is not None
    assert current.expires_ms == clock.now_ms() + SERVER_DAYS * DAY_S * 1_000
    assert set(current.names) == {
        *("localhost", "127.0.0.1", "::1"),
        *("penstock.example", "*.penstock.example", "10.1.2.3", "fd00::7"),
    }


def test_one_file_has_both_so_that_a_context_loads_it(authority: TlsAuthority) -> None:
    authority.issue()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(authority.folder / "server.pem")
    client_context(str(authority.certificate), str(authority.folder / "server.pem"))


def test_an_authority_is_created_once(authority: TlsAuthority) -> None:
    before = authority.fingerprint()
    assert not authority.create()
    assert authority.fingerprint() == before
    assert len(before.split(":")) == 32


def test_it_renews_before_the_end_and_keeps_the_names(
    authority: TlsAuthority, clock: VirtualClock
) -> None:
    assert authority.issue_if_due(["a.example"]) is not None
    first = issued_by(authority)
    clock.advance((SERVER_DAYS - RENEW_DAYS) * DAY_S)
    assert authority.issue_if_due(["a.example"]) is None
    clock.advance(1)
    renewed = authority.issue_if_due([])
    assert renewed is not None
    assert "a.example" in renewed.names
    second = issued_by(authority)
    assert second.serial_number != first.serial_number
    assert second.public_key() != first.public_key()


def test_a_new_name_needs_a_new_certificate(authority: TlsAuthority) -> None:
    authority.issue(["a.example"])
    assert authority.issue_if_due(["a.example"]) is None
    issued = authority.issue_if_due(["b.example"])
    assert issued is not None
    assert {"a.example", "b.example"} <= set(issued.names)


def test_a_certificate_does_not_outlive_its_authority(
    authority: TlsAuthority, clock: VirtualClock
) -> None:
    clock.advance((AUTHORITY_DAYS - 10) * DAY_S)
    authority.issue()
    root = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    assert issued_by(authority).not_valid_after_utc == root.not_valid_after_utc


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN CERTIFICATE-----\nx\n", None])
def test_a_damaged_certificate_is_replaced(authority: TlsAuthority, damage: bytes | None) -> None:
    path = authority.folder / "server.pem"
    if damage is not None:
        path.write_bytes(damage)
    assert authority.current() is None
    assert authority.issue_if_due([]) is not None


@pytest.mark.parametrize("lost", ["authority.crt", "authority.key"])
def test_half_an_authority_is_not_replaced(authority: TlsAuthority, lost: str) -> None:
    (authority.folder / lost).unlink()
    with pytest.raises(Conflict, match=rf"without {lost}"):
        authority.create()
    with pytest.raises(NotFound, match=r"penstock tls init"):
        authority.issue()
    assert authority.can_issue is (lost == "authority.crt")


def test_a_key_of_another_authority_is_refused(
    authority: TlsAuthority, tmp_path: Path, clock: VirtualClock
) -> None:
    other = TlsAuthority(tmp_path / "other", clock)
    other.create()
    (other.folder / "authority.key").replace(authority.folder / "authority.key")
    with pytest.raises(InvalidRequest, match=r"do not belong together"):
        authority.issue()
    (authority.folder / "authority.key").write_text("x")
    with pytest.raises(InvalidRequest, match=r"cannot be used"):
        authority.issue()


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64 + ".example", "a b", "http://a.example"])
def test_a_name_that_no_host_has_is_refused(authority: TlsAuthority, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not a host"):
        authority.issue([name])
    assert authority.current() is None


def test_a_name_may_have_letters_of_any_language(authority: TlsAuthority) -> None:
    assert "xn--bcher-kva.example" in authority.issue(["bücher.example"]).names
    # It has the name already.
    assert authority.issue_if_due(["bücher.example"]) is None


def test_a_second_host_issues_its_own_from_a_copy(
    authority: TlsAuthority, tmp_path: Path, clock: VirtualClock
) -> None:
    second = TlsAuthority(tmp_path / "second", clock)
    second.folder.mkdir()
    for name in ("authority.crt", "authority.key"):
        (second.folder / name).write_bytes((authority.folder / name).read_bytes())
    assert not second.create()
    second.issue(["second.example"])
    root = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    issued_by(second).verify_directly_issued_by(root)


def test_when_it_is_due() -> None:
    certificate = ServerCertificate(("a",), expires_ms=RENEW_DAYS * DAY_S * 1_000)
    assert not certificate.is_due(0, ["a"])
    assert certificate.is_due(1, ["a"])
    assert certificate.is_due(0, ["b"])


# -- the commands


@pytest.fixture
def _cli() -> None:
    CLI.__init__()  # type: ignore[misc]


@pytest.mark.usefixtures("_cli")
def test_init_and_renew_print_what_clients_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOWED_HOSTS", "lb.example")
    folder = tmp_path / "data"
    options = ["--data-dir", str(folder)]
    assert run(["tls", "init", *options, "--host", "a.example", "--host", "10.0.0.1"]) == 0
    text = capsys.readouterr().out
    assert f"created the authority {folder}/tls/authority.crt" in text
    for name in ("localhost", "a.example", "10.0.0.1", "lb.example"):
        assert name in text.split("certificate for ")[1].splitlines()[0].split(", ")
    assert "SHA-256 " in text
    assert "--tls-ca" in text
    before = (folder / "tls" / "server.pem").read_bytes()
    assert run(["tls", "renew", *options]) == 0
    text = capsys.readouterr().out
    assert "a.example" in text
    assert (folder / "tls" / "server.pem").read_bytes() != before
    assert run(["tls", "init", *options]) == 0
    assert "kept the authority" in capsys.readouterr().out


@pytest.mark.usefixtures("_cli")
def test_renew_without_an_authority_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tls", "renew", "--data-dir", str(tmp_path / "data")]) == 1
    assert "penstock tls init" in capsys.readouterr().err

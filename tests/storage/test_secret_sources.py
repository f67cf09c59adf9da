"""Sources of secrets: the operator names them, and no error shows a value or an output."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.storage.secrets import secret_sources
from penstock.storage.secrets.sealed_values import SealingKey
from penstock.storage.secrets.secret_sources import (
    COMMAND_CACHE_S,
    CommandSource,
    FileSource,
    Secrets,
    VariableSource,
    parse_sources,
    run_command,
)
from penstock.testing.clock import VirtualClock


def write(folder: Path, text: str) -> Path:
    path = folder / "secrets.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def printing(text: str, code: int = 0) -> tuple[str, ...]:
    program = f"import sys; print({text!r}); print({text!r}, file=sys.stderr); sys.exit({code})"
    return (sys.executable, "-c", program)


def test_each_kind_of_source_is_read() -> None:
    found = parse_sources(
        """
        [key]
        command = ["pass", "show", "penstock"]
        [secrets.kafka]
        variable = "KAFKA_PASSWORD"
        [secrets.shop]
        file = "/run/secrets/shop"
        """,
        "secrets.toml",
    )
    assert found.key == CommandSource(("pass", "show", "penstock"))
    assert found.secrets == {
        "kafka": VariableSource("KAFKA_PASSWORD"),
        "shop": FileSource("/run/secrets/shop"),
    }
    assert found.variables() == {"KAFKA_PASSWORD"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[secrets", "is not valid TOML"),
        ("[sources]", "secrets.toml: sources: unknown table"),
        ("secrets = 1", "must be a table"),
        ('[secrets."a/b"]\nfile = "/x"', "secrets.a/b: invalid name"),
        ("[secrets.a]", "secrets.toml: secrets.a: unknown source"),
        ('[secrets.a]\nvalue = "hush"', "unknown source"),
        ('[secrets.a]\nfile = "/x"\nvariable = "X"', "unknown source"),
        ('[secrets.a]\nfile = "x"', "must be an absolute path"),
        ("[secrets.a]\nfile = 1", "file must be text"),
        ('[secrets.a]\nvariable = "A=B"', "invalid name of an environment variable"),
        ('[secrets.a]\ncommand = "cat hush"', "must be a list of texts"),
        ("[secrets.a]\ncommand = []", "must be a list of texts"),
        ('[secrets.a]\ncommand = ["./x"]', "a name or an absolute path"),
        ('key = "hush"', "secrets.toml: key: unknown source"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_sources(text, "secrets.toml")
    assert said in str(error.value)
    assert "hush" not in str(error.value)


def test_a_secret_is_looked_up_where_the_operator_says(tmp_path: Path) -> None:
    (tmp_path / "value").write_text("from a file\r\n")
    command = ", ".join(map(repr, printing("from a command")))
    write(
        tmp_path,
        f"""
        [secrets.variable]
        variable = "HELD"
        [secrets.file]
        file = "{tmp_path}/value"
        [secrets.command]
        command = [{command}]
        """,
    )
    secrets = Secrets(tmp_path, {"HELD": "from a variable", "OTHER": "x"})
    secrets.store().set("sealed", "from the store")
    for name in ("variable", "file", "command"):
        assert secrets.value(name) == f"from a {name}"
        assert secrets.knows(name)
    assert secrets.text("secret://sealed") == "from the store"
    assert secrets.text("plain") == "plain"
    assert not secrets.knows("absent")


def test_a_reference_without_a_value_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"""
        [secrets.variable]
        variable = "ABSENT"
        [secrets.file]
        file = "{tmp_path}/absent"
        [secrets.empty]
        variable = "EMPTY"
        """,
    )
    secrets = Secrets(tmp_path, {"EMPTY": "", "SEALED": "hush"})
    for name, said in (
        ("variable", "the variable ABSENT is not set"),
        ("file", "cannot be read: No such file"),
        ("empty", "must have 1 to"),
        ("SEALED", "penstock secret set NAME"),
        ("../key", "invalid name of a secret"),
    ):
        with pytest.raises(InvalidRequest, match=said) as error:
            secrets.text(f"secret://{name}", "spec.password")
        assert str(error.value).startswith("spec.password: ")
    with pytest.raises(InvalidRequest, match="this process has no secrets"):
        Secrets().text("secret://a")


def test_a_command_that_fails_shows_nothing_that_it_printed(tmp_path: Path) -> None:
    for arguments, said in (
        (printing("hush", 3), "exit code 3"),
        (("/absent/program", "hush"), "cannot be started"),
    ):
        with pytest.raises(Unavailable, match=said) as error:
            run_command(arguments, {})
        assert "hush" not in str(error.value)
    command = ", ".join(map(repr, printing("hush", 1)))
    write(tmp_path, f"[secrets.a]\ncommand = [{command}]")
    with pytest.raises(Unavailable, match="secret 'a': the command") as error:
        Secrets(tmp_path).value("a")
    assert "hush" not in str(error.value)


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_sources, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match="did not end within"):
        run_command((sys.executable, "-c", "import time; time.sleep(60)"), {})


def test_a_command_gets_no_secrets_and_its_output_is_kept_for_a_minute(tmp_path: Path) -> None:
    write(tmp_path, '[secrets.a]\ncommand = ["vault"]\n[key]\nvariable = "KEY"')
    seen: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def run(arguments: tuple[str, ...], environment: Mapping[str, str]) -> bytes:
        seen.append((arguments, environment))
        return b"value %d\n" % len(seen)

    clock = VirtualClock()
    secrets = Secrets(tmp_path, {"KEY": "hush"}, {"PATH": "/bin"}, clock, run)
    assert [secrets.value("a"), secrets.value("a")] == ["value 1", "value 1"]
    assert seen == [(("vault",), {"PATH": "/bin"})]
    clock.advance(COMMAND_CACHE_S + 1)
    assert secrets.value("a") == "value 2"


@pytest.mark.parametrize("output", [b"", b"\n", b"\xff", b"x" * 70_000])
def test_an_output_that_is_no_secret_is_refused(tmp_path: Path, output: bytes) -> None:
    write(tmp_path, '[secrets.a]\ncommand = ["vault"]')
    with pytest.raises(InvalidRequest, match="the value"):
        Secrets(tmp_path, run=lambda _arguments, _environment: output).value("a")


def test_the_key_of_sealed_secrets_may_be_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, '[key]\nvariable = "KEY"')
    key = SealingKey(b"k" * 32).text
    Secrets(tmp_path, {"KEY": key}).store().set("a", "hush")
    assert Secrets(tmp_path, {"KEY": key}).value("a") == "hush"
    assert not (tmp_path / "key").exists()
    for wrong, said in (({}, "the variable KEY is not set"), ({"KEY": "hush"}, "a key of secrets")):
        with pytest.raises(InvalidRequest, match=said) as error:
            Secrets(tmp_path, wrong).value("a")
        assert "hush" not in str(error.value)


def test_a_file_that_others_may_write_names_no_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[secrets.a]\ncommand = ["vault"]')
    secrets = Secrets(tmp_path, run=lambda _arguments, _environment: b"hush")
    assert secrets.value("a") == "hush"
    for mode, said in ((0o620, "all users of the group"), (0o602, "every user of this host")):
        path.chmod(mode)
        tmp_path.chmod(0o755)
        with pytest.raises(PenstockError, match=said):
            secrets.value("a")
    path.chmod(0o600)
    os.chown(path, 12_345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", int)
    with pytest.raises(PenstockError, match="could change at any time"):
        secrets.value("a")

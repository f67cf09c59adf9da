"""Where the value of each secret comes from, and its lookup in the process that uses it.

Owns `secrets.toml` in the folder of secrets, which only the operator writes. It names, for single
secrets and for the key of the sealed ones, an environment variable, a file, or a command that
prints the value. A secret that it does not name is a sealed one of this host (`secret_store`).

    [key]
    command = ["pass", "show", "penstock"]

    [secrets.kafka]
    variable = "KAFKA_PASSWORD"

A command is a list of arguments and never goes through a shell. Its output and its errors are not
shown, because either may contain the secret. Its result is kept for a minute, because a stream asks
for its password at every connection.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.access.private_file import read_bounded
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.secret_names import SCHEME, check_secret_name, referenced_name

if TYPE_CHECKING:
    from penstock.storage.secrets.secret_store import SecretStore

SECRETS_FOLDER: Final = "secrets"
"""Folder of secrets in a data folder."""
SOURCES_FILE: Final = "secrets.toml"
COMMAND_TIMEOUT_S: Final = 30.0
COMMAND_CACHE_S: Final = 60.0

_SOURCES_BYTES_MAX: Final = 4 << 20
_VALUE_BYTES_MAX: Final = 64 << 10
_ARGUMENTS_MAX: Final = 100
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_KINDS: Final = ("variable", "file", "command")
_FORM: Final = 'write one of variable = "NAME", file = "/PATH" and command = ["PROGRAM", …]'


@dataclass(frozen=True, slots=True)
class VariableSource:
    """A variable in the environment in which Penstock was started."""

    variable: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """The content of a file, without the line break at its end."""

    path: str


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The output of a program, without the line break at its end."""

    arguments: tuple[str, ...]


Source: TypeAlias = VariableSource | FileSource | CommandSource


@dataclass(frozen=True, slots=True)
class SecretSources:
    """Content of `secrets.toml`.

    Attributes:
        key: Source of the key of sealed secrets; None: the file `key`.
        secrets: Source of each secret that is not sealed.
    """

    key: Source | None = None
    secrets: Mapping[str, Source] = field(default_factory=dict)

    def variables(self) -> frozenset[str]:
        """Return the environment variables that contain secrets."""
        sources = (self.key, *self.secrets.values())
        return frozenset(one.variable for one in sources if isinstance(one, VariableSource))


def parse_sources(text: str, place: str) -> SecretSources:
    """Read the content of `secrets.toml`.

    Args:
        text: The content.
        place: The file, for errors.

    Raises:
        InvalidRequest: It is not TOML, or has an unknown or wrong key.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"is not valid TOML: {error}", place=place) from None
    for name in given:
        if name not in {"key", "secrets"}:
            raise InvalidRequest(
                "unknown table: there are key and secrets", place=f"{place}: {name}"
            )
    secrets = given.get("secrets", {})
    if not isinstance(secrets, dict):
        raise InvalidRequest("must be a table of secrets", place=f"{place}: secrets")
    found = {}
    for name, one in secrets.items():
        at = f"{place}: secrets.{name}"
        try:
            check_secret_name(name)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=at) from None
        found[name] = _source(one, at)
    key = _source(given["key"], f"{place}: key") if "key" in given else None
    return SecretSources(key, found)


def _source(given: object, place: str) -> Source:
    if not isinstance(given, dict) or len(given) != 1 or not given.keys() <= set(_KINDS):
        raise InvalidRequest(f"unknown source of a secret: {_FORM}", place=place)
    [(kind, value)] = given.items()
    if kind == "command":
        is_list = isinstance(value, list) and 1 <= len(value) <= _ARGUMENTS_MAX
        if not is_list or not all(isinstance(one, str) and "\0" not in one for one in value):
            raise InvalidRequest(f"command must be a list of texts: {_FORM}", place=place)
        if not os.path.isabs(value[0]) and "/" in value[0]:  # noqa: PTH117 - only its form
            raise InvalidRequest("the program must be a name or an absolute path", place=place)
        return CommandSource(tuple(value))
    if not isinstance(value, str):
        raise InvalidRequest(f"{kind} must be text: {_FORM}", place=place)
    if kind == "variable":
        if _VARIABLE.fullmatch(value) is None:
            raise InvalidRequest("invalid name of an environment variable", place=place)
        return VariableSource(value)
    if not value.startswith("/") or "\0" in value:
        raise InvalidRequest("file must be an absolute path", place=place)
    return FileSource(value)


def read_sources(folder: Path) -> SecretSources:
    """Read `secrets.toml` of a folder of secrets; without the file, all secrets are sealed ones.

    Raises:
        InvalidRequest: Other users may write it, which names commands; or it is wrong.
        Unavailable: It cannot be read.
    """
    path = folder / SOURCES_FILE
    try:
        content = read_bounded(path, _SOURCES_BYTES_MAX, is_private=False)
    except NotFound:
        return SecretSources()
    try:
        return parse_sources(content.decode(), str(path))
    except UnicodeDecodeError:
        raise InvalidRequest("is not valid UTF-8", place=str(path)) from None


def run_command(arguments: tuple[str, ...], environment: Mapping[str, str]) -> bytes:
    """Run a program and return its output.

    Raises:
        Unavailable: It cannot be started, fails, or takes longer than `COMMAND_TIMEOUT_S`.
    """
    shown = f"the command {arguments[0]!r}"
    try:
        ended = subprocess.run(
            arguments,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{shown} did not end within {COMMAND_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise Unavailable(f"{shown} cannot be started: {error.strerror}") from None
    if ended.returncode:
        raise Unavailable(
            f"{shown} ended with exit code {ended.returncode}: run it yourself to see why"
        )
    return ended.stdout


class Secrets:
    """Looks up secrets at the moment of their use. Safe for use by several threads.

    The mutex guards the results of commands, because a lookup blocks its own thread, and mail would
    need a thread for each command.

    Args:
        folder: The folder of secrets; None: there are only variables.
        variables: The environment in which Penstock was started, with its secrets.
        environment: The environment of commands.
        clock: Time.
        run: Runs a command.
    """

    def __init__(
        self,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        run: Callable[[tuple[str, ...], Mapping[str, str]], bytes] = run_command,
    ) -> None:
        self._folder = folder
        self.variables: Mapping[str, str] = {} if variables is None else variables
        self._environment = os.environ if environment is None else environment
        self._clock = clock or SystemClock()
        self._run = run
        self._mutex = threading.Lock()
        self._printed: dict[tuple[str, ...], tuple[float, str]] = {}

    def text(self, given: str, place: str = "") -> str:
        """Return the value of a reference; other text is returned as it is.

        Args:
            given: `secret://NAME`, or a value.
            place: The field, for errors.

        Raises:
            InvalidRequest: The reference is invalid, or the secret unknown or unreadable.
            CorruptData: The file of sealed secrets is damaged.
            Unavailable: A command or the disk fails.
        """
        try:
            name = referenced_name(given)
            return given if name is None else self.value(name)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=place) from None

    def value(self, name: str) -> str:
        """Return the value of a secret. Raises as `text`."""
        check_secret_name(name)
        if self._folder is None:
            raise InvalidRequest(f"this process has no secrets, so {SCHEME}{name} has no value")
        sources = read_sources(self._folder)
        source = sources.secrets.get(name)
        if source is not None:
            return self._from(source, f"secret {name!r}")
        try:
            return _checked(self._store(sources).value(name), f"secret {name!r}")
        except NotFound as error:
            raise InvalidRequest(f"{error}, or name its source in {SOURCES_FILE}") from None

    def knows(self, name: str) -> bool:
        """Return whether a secret has a source or a sealed value, without reading its value.

        Raises:
            InvalidRequest: `secrets.toml` is wrong.
            CorruptData: The file of sealed secrets is damaged.
            Unavailable: The disk does not answer.
        """
        if self._folder is None:
            return False
        sources = read_sources(self._folder)
        return name in sources.secrets or self._store(sources).has(name)

    def store(self) -> SecretStore:
        """Return the sealed secrets.

        Raises:
            InvalidRequest: This process has no folder of secrets, or `secrets.toml` is wrong.
        """
        if self._folder is None:
            raise InvalidRequest("this process has no secrets")
        return self._store(read_sources(self._folder))

    def _store(self, sources: SecretSources) -> SecretStore:
        # Imported here: only sealed secrets need `cryptography`, which takes 40 ms and 8 MB.
        from penstock.storage.disk import OwnerFileSystem  # noqa: PLC0415
        from penstock.storage.secrets.secret_store import SecretStore  # noqa: PLC0415

        key = sources.key
        elsewhere = None if key is None else lambda: self._from(key, "the key of the secrets")
        assert self._folder is not None
        return SecretStore(str(self._folder), OwnerFileSystem(), self._clock, elsewhere)

    def _from(self, source: Source, shown: str) -> str:
        match source:
            case VariableSource(variable):
                found = self.variables.get(variable)
                if found is None:
                    raise InvalidRequest(
                        f"{shown}: the variable {variable} is not set: set it where Penstock is"
                        " started, and restart it"
                    )
                return _checked(found, shown)
            case FileSource(path):
                return _text(_content(path, shown), shown)
            case CommandSource(arguments):
                return self._output(arguments, shown)

    def _output(self, arguments: tuple[str, ...], shown: str) -> str:
        now_s = self._clock.monotonic_s()
        with self._mutex:
            known = self._printed.get(arguments)
        if known is not None and now_s - known[0] < COMMAND_CACHE_S:
            return known[1]
        try:
            # Without the variables, which all processes of this user could read in its environment.
            found = _text(self._run(arguments, self._environment), shown)
        except Unavailable as error:
            raise Unavailable(f"{shown}: {error}") from None
        with self._mutex:
            self._printed[arguments] = (now_s, found)
        return found


class ProcessSecrets:
    """The secrets of this process; set when the process starts, read from any thread."""

    def __init__(self) -> None:
        self._secrets = Secrets()

    def set(self, secrets: Secrets) -> None:
        """Replace the secrets."""
        self._secrets = secrets

    def get(self) -> Secrets:
        """Return the secrets; without a service, there are none."""
        return self._secrets


SECRETS: Final = ProcessSecrets()


def _content(path: str, shown: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_VALUE_BYTES_MAX + 2)
    except OSError as error:
        raise InvalidRequest(f"{shown}: {path} cannot be read: {error.strerror}") from None


def _text(content: bytes, shown: str) -> str:
    try:
        return _checked(content.decode().removesuffix("\n").removesuffix("\r"), shown)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{shown}: the value is not valid UTF-8") from None


def _checked(value: str, shown: str) -> str:
    if not 1 <= len(value.encode("utf-8", "replace")) <= _VALUE_BYTES_MAX or "\0" in value:
        raise InvalidRequest(
            f"{shown}: the value must have 1 to {_VALUE_BYTES_MAX} bytes, none of them zero"
        )
    return value

"""The options of a process: the entries of the table, given in four places.

Owns how a value is written in `penstock.toml`, in `PENSTOCK_…` variables and on the command line,
and the precedence: defaults < file < variables < command line. Also owns the form in which a
process passes its options to a child.

Invariant: a wrong value is refused with its place; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import json
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final, cast

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import is_reference, referenced_name
from penstock.core.similar_names import most_similar
from penstock.services.options.option_values import masked
from penstock.services.options.table import VARIABLE_PREFIX, PenstockOptions, option_entries
from penstock.storage.secrets.secret_sources import Secrets

CONFIG_FILE: Final = "penstock.toml"
_SECRET_BYTES_MAX: Final = 4_096
_AS_THE_USER: Final = "run this command as the user that runs Penstock"

# Variables that the commands read themselves; they are not options of a server.
CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
OTHER_VARIABLES: Final = ("PENSTOCK_URL", CONFIG_VARIABLE)

# A misspelt variable is reported. One that resembles no option may belong to another program
# (Kubernetes sets PENSTOCK_SERVICE_HOST for a service of that name).
VARIABLE_RESEMBLANCE: Final = 0.75
# A key of the options file must be an option, so a weaker resemblance suffices for a hint.
_KEY_RESEMBLANCE: Final = 0.5


def _parse(field_name: str, value: object, place: str) -> object:
    entry = next(item for item in fields(PenstockOptions) if item.name == field_name)
    if is_reference(value):
        return _reference(str(value), place, allowed=bool(entry.metadata["may_name_secret"]))
    parse = cast("Callable[[object], object]", entry.metadata["parse"])
    try:
        return parse(value)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from None


def _reference(text: str, place: str, *, allowed: bool) -> str:
    """Return a reference to a secret, which stays one until a process uses it."""
    try:
        referenced_name(text)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from None
    if not allowed:
        names = ", ".join(entry.key for entry in option_entries() if entry.may_name_secret)
        raise InvalidRequest(
            f"this option must not name a secret, because it is shown: only {names} may",
            place=place,
        )
    return text


def check_secrets(options: PenstockOptions, secrets: Secrets) -> None:
    """Check that the secrets that options name exist, without looking up their values.

    Raises:
        InvalidRequest: One does not exist, or `secrets.toml` is wrong.
        CorruptData: The file of sealed secrets is damaged.
        Unavailable: The disk does not answer.
    """
    for entry in option_entries():
        given = getattr(options, entry.field_name)
        name = referenced_name(given) if entry.may_name_secret and is_reference(given) else None
        if name is not None and not secrets.knows(name):
            raise InvalidRequest(
                f"unknown secret {name!r}: set it with `penstock secret set {name}`, or name its"
                " source in secrets.toml",
                place=entry.key,
            )


def with_secrets(options: PenstockOptions, secrets: Secrets) -> PenstockOptions:
    """Return options for use in this process, with the values of secrets: never store or show them.

    Raises:
        InvalidRequest: A secret has no value, or one that the option does not accept. The message
            does not contain it.
        CorruptData: The file of sealed secrets is damaged.
        Unavailable: The command that prints a secret fails.
    """
    values: dict[str, object] = {}
    for entry in option_entries():
        given = getattr(options, entry.field_name)
        if not entry.may_name_secret or not is_reference(given):
            continue
        value = secrets.text(given, entry.key)
        # From None in `_parse`: the error of the parser shows the value.
        with_value = {"place": f"{entry.key}: {given}"}
        try:
            values[entry.field_name] = _parse(entry.field_name, value, "")
        except InvalidRequest:
            text = "the secret is not a valid value of this option: set it again"
            raise InvalidRequest(text, **with_value) from None
        if is_reference(value):
            raise InvalidRequest("the secret must not name another secret", **with_value)
    return dataclasses.replace(options, **values) if values else options  # type: ignore[arg-type]  # each value came out of its field's parser


def _known_key(name: str, names: list[str]) -> str:
    near = most_similar(name, names, resemblance=_KEY_RESEMBLANCE)
    return "the names are " + ", ".join(names) if near is None else f"did you mean {near}?"


def read_file(path: Path) -> dict[str, object]:
    """Read a `penstock.toml` into option values by field name.

    Raises:
        InvalidRequest: The file cannot be read, is not TOML, or has a wrong key or value.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = _AS_THE_USER if isinstance(error, PermissionError) else "correct the path"
        raise InvalidRequest(
            f"cannot be read ({error.strerror}): {remedy}, or name another file with --config",
            place=str(path),
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"is not valid TOML: {error}", place=str(path)) from None
    by_key = {entry.key: entry.field_name for entry in option_entries()}
    values: dict[str, object] = {}
    for key, value in raw.items():
        if key not in by_key:
            raise InvalidRequest(
                f"no option has this name; {_known_key(key, list(by_key))}", place=f"{path}: {key}"
            )
        values[by_key[key]] = _parse(by_key[key], value, f"{path}: {key}")
    return values


def read_variables(environment: Mapping[str, str]) -> dict[str, object]:
    """Read `PENSTOCK_…` variables into option values by field name.

    Raises:
        InvalidRequest: A value is wrong, or a name resembles an option's name.
    """
    by_variable = {entry.variable: entry.field_name for entry in option_entries()}
    values: dict[str, object] = {}
    for name, value in environment.items():
        if not name.startswith(VARIABLE_PREFIX) or name in OTHER_VARIABLES or not value:
            continue
        if name in by_variable:
            values[by_variable[name]] = _parse(by_variable[name], value, name)
            continue
        suffixes = [known.removeprefix(VARIABLE_PREFIX) for known in by_variable]
        suffix = name.removeprefix(VARIABLE_PREFIX)
        near = most_similar(suffix, suffixes, resemblance=VARIABLE_RESEMBLANCE)
        if near is not None:
            raise InvalidRequest(
                f"no option has this name; did you mean {VARIABLE_PREFIX}{near}?", place=name
            )
    return values


def _is_file(path: Path) -> bool:
    """Return whether a data folder has an options file.

    Raises:
        InvalidRequest: This user cannot open the data folder.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise InvalidRequest(
            f"the data folder {path.parent} cannot be read ({error.strerror}): {_AS_THE_USER}, or"
            " name another folder with --data-dir"
        ) from None


def resolve(
    command_line: Mapping[str, object],
    environment: Mapping[str, str],
    config_file: Path | None = None,
) -> PenstockOptions:
    """Merge the four sources.

    Args:
        command_line: Values given as options, by field name; None means not given.
        environment: The variables of the process.
        config_file: File to read instead of `DIR/penstock.toml`; it must exist then.

    Raises:
        InvalidRequest: A name or a value is wrong, or the command line holds a secret; the message
            begins with its place.
    """
    given = {
        name: _parse(name, value, f"--{name.replace('_', '-')}")
        for name, value in command_line.items()
        if value is not None
    }
    _refuse_secrets(given)
    variables = read_variables(environment)
    data_dir = cast(
        "Path", given.get("data_dir", variables.get("data_dir", PenstockOptions().data_dir))
    )
    named = config_file or environment.get(CONFIG_VARIABLE)
    path = Path(named) if named else data_dir / CONFIG_FILE
    from_file = read_file(path) if named or _is_file(path) else {}
    merged: dict[str, object] = {}
    for place in (from_file, variables, given):
        if place.keys() >= {"token", "token_file"}:
            raise InvalidRequest("the options token and token-file exclude each other: give one")
        # A source that has one of the two options overrides both.
        if "token" in place or "token_file" in place:
            merged.pop("token", None)
            merged.pop("token_file", None)
        merged |= place
    if "token_file" in merged:
        merged["token"] = read_secret(cast("Path", merged["token_file"]), "token-file")
    return PenstockOptions(**merged)  # type: ignore[arg-type]  # each value came out of its field's parser


def read_secret(path: Path, place: str) -> str:
    """Return the secret of a file: its one line.

    Raises:
        InvalidRequest: The file cannot be read, or does not hold one line of text.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_SECRET_BYTES_MAX + 1).decode()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", place=place) from None
    except UnicodeDecodeError:
        text = ""
    secret = text.strip()
    if len(text) > _SECRET_BYTES_MAX or not secret.isprintable() or not secret:
        raise InvalidRequest(
            f"{path} does not hold a secret: write one line of up to {_SECRET_BYTES_MAX} bytes",
            place=place,
        )
    return secret


def _refuse_secrets(command_line: Mapping[str, object]) -> None:
    """Refuse secrets on the command line, which every user of a host can read."""
    for entry in option_entries():
        value = command_line.get(entry.field_name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        in_url = "://" in text and masked(text, "") != text
        if is_reference(value):
            continue
        if in_url or (entry.is_secret and value is not None):
            raise InvalidRequest(
                "every user of this host can read the command line, and this is a secret: give"
                f" secret://NAME, or set {entry.variable}, or {entry.key} in {CONFIG_FILE}",
                place=entry.flag,
            )


def to_json(options: PenstockOptions) -> str:
    """Serialize options for `from_json`: the way in which child processes receive them."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    return json.dumps(
        {
            name: value if value is None or isinstance(value, int | tuple) else str(value)
            for name, value in values.items()
        },
        indent=1,
        default=str,  # paths in a list
    )


def from_json(text: str) -> PenstockOptions:
    """Parse the output of `to_json`.

    Raises:
        InvalidRequest: The text is damaged.
    """
    values = json.loads(text)
    return PenstockOptions(
        **{
            name: _parse(name, value, name)
            for name, value in values.items()
            if value is not None and value != []
        }  # type: ignore[arg-type]  # as above
    )

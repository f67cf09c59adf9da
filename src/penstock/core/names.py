"""Rules for names of datasources, supervisors, tasks, tiers and parts of a flow.

One rule for each kind of name, and one function that checks a name by its rule. Names are compared
and stored in Unicode's normal form C, so that text that looks the same is the same name.

Names of topics and channels follow NSQ's own rule (`penstock.broker.topic_names`), which is ASCII.
Names that an earlier release stored are not changed: see `spelling` and `known_name`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

# Controls, formats such as overrides of the reading direction, and surrogates. Line and paragraph
# separators are white space.
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs"})
_REPLACEMENT: Final = "\ufffd"
_VARIABLE: Final = "${"  # refused in statements, see `core.sql_text`

IsStored = Callable[[str], bool]
"""Returns whether a name is stored exactly as given."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """The rule of one kind of name.

    Attributes:
        what: The kind, for messages.
        bytes_max: Maximum length in UTF-8; 0: `characters_max` applies.
        characters_max: Maximum length in characters; 0: `bytes_max` applies.
        is_folder: Whether it becomes a folder: then it must not start with a dot.
        reserved: Characters with a meaning, and their meaning.
        taken: Names of Penstock's own files in the folder that contains the folders of such names.
        in_sql: Whether queries must be able to name it: then it must not have `${`.
    """

    what: str
    bytes_max: int = 0
    characters_max: int = 0
    is_folder: bool = False
    reserved: tuple[str, str] = ("", "")
    taken: tuple[str, ...] = ()
    in_sql: bool = False


_PATH: Final = ("/\\", "the name becomes a folder")

WORKER_STATE_FILE: Final = "worker.json"
WORKER_IDENTITY_FILE: Final = "identity.json"
_WORKER_FILES: Final = (WORKER_STATE_FILE, WORKER_IDENTITY_FILE)

# Names of task folders are about 60 bytes longer, and escaped ones up to three times as long.
DATASOURCE: Final = NameRule("datasource name", bytes_max=64, is_folder=True, reserved=_PATH)
TABLE: Final = replace(DATASOURCE, in_sql=True)
"""For a datasource into which rows are ingested.

Existing datasources with other names can still be compacted and removed.
"""
SUPERVISOR: Final = NameRule("supervisor id", bytes_max=64, is_folder=True, reserved=_PATH)
TASK: Final = NameRule(
    "task id",
    bytes_max=180,
    is_folder=True,
    reserved=_PATH,
    # A file is first written under its name with `.tmp`, then renamed.
    taken=(*_WORKER_FILES, *(f"{name}.tmp" for name in _WORKER_FILES)),
)
LOOKUP: Final = NameRule(
    "lookup name",
    bytes_max=64,
    reserved=("/\\.", "the name of a column follows it"),
    in_sql=True,
)
TIER: Final = NameRule("tier name", bytes_max=64, is_folder=True, reserved=_PATH)
LOOKED_UP: Final = NameRule("name", bytes_max=255, is_folder=True, reserved=_PATH)
"""For a name of a task, a supervisor or a worker in a request, which may be of any origin."""
COMPONENT: Final = NameRule(
    "name", characters_max=200, reserved=("/", "a slash separates a group from its components")
)

CONNECTION: Final = NameRule("connection name", characters_max=500)
"""It may have slashes: the default name of a connection contains those of its two ends."""


def check_name(name: str, rule: NameRule, *, place: str = "") -> str:
    """Return a name in normal form C if it is valid for something new.

    Args:
        name: The name as given.
        rule: The rule of its kind.
        place: Its place in the input, for the message.

    Raises:
        InvalidRequest: The name violates the rule; the message shows it escaped.
    """
    name = check_stored_name(name, rule, place=place)
    if _REPLACEMENT in name:
        raise _refused(
            name, rule, place, "it has U+FFFD, which stands for bytes that are not valid UTF-8"
        )
    if rule.in_sql and _VARIABLE in name:
        raise _refused(
            *(name, rule, place),
            f"it has {_VARIABLE!r}, which begins a variable of Spark, so no query could name it",
        )
    check_not_taken(name, rule, place=place)
    return name


def check_not_taken(name: str, rule: NameRule, *, place: str = "") -> None:
    """Refuse the name of one of Penstock's own files. Raises as `check_name`.

    Not checked for stored names: an earlier release may have stored one, which can be removed.
    """
    if name in rule.taken:
        raise _refused(name, rule, place, "Penstock has a file of this name next to the folders")


def check_stored_name(name: str, rule: NameRule, *, place: str = "") -> str:
    """Return a name in normal form C if an earlier release allowed it. Raises as `check_name`."""
    name = normalised(name)
    if not name:
        raise InvalidRequest("must not be empty", place=place)
    size = len(name.encode("utf-8", "replace"))
    if rule.bytes_max and size > rule.bytes_max:
        raise _refused(
            name, rule, place, f"it has {size:,} bytes in UTF-8, more than {rule.bytes_max}"
        )
    if rule.characters_max and len(name) > rule.characters_max:
        raise _refused(
            name, rule, place, f"it has {len(name):,} characters, more than {rule.characters_max}"
        )
    if rule.is_folder and name.startswith("."):
        raise _refused(name, rule, place, "it starts with a dot, and the name becomes a folder")
    signs, meaning = rule.reserved
    for sign in signs:
        if sign in name:
            raise _refused(name, rule, place, f"it has {sign!r}, and {meaning}")
    if not name.isascii() or not name.isprintable():
        _check_characters(name, rule, place)
    if name != name.strip():
        raise _refused(name, rule, place, "it starts or ends with a space")
    return name


def is_valid_name(name: str, rule: NameRule) -> bool:
    """Return whether a name is valid for something new."""
    try:
        check_name(name, rule)
    except InvalidRequest:  # narrow: restores nothing
        return False
    return True


def normalised(name: str) -> str:
    """Return a name in Unicode's normal form C, in which names are compared and stored."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def spelling(name: str, is_stored: IsStored) -> str:
    """Return the spelling under which a name is stored: normal form C.

    Earlier releases stored names as given; such a name keeps its spelling, by which its segments,
    offsets and locks are found.
    """
    changed = normalised(name)
    return name if changed != name and is_stored(name) else changed


def known_name(name: str, rule: NameRule, is_stored: IsStored, *, place: str = "") -> str:
    """Return the spelling of a name that is looked up.

    A name that violates the rule is accepted only if an earlier release stored it: then it can be
    read and removed.

    Raises:
        InvalidRequest: The name violates the rule and is not stored.
    """
    try:
        check_name(name, rule, place=place)
    except InvalidRequest:  # narrow: the rule is violated
        if is_stored(name):
            return name
        raise
    return spelling(name, is_stored)


def _check_characters(name: str, rule: NameRule, place: str) -> None:
    for character in name:
        if character == " ":
            continue
        if character.isspace() or unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise _refused(
                *(name, rule, place),
                f"it has U+{ord(character):04X}, which is white space, a control character or half"
                " of a surrogate pair",
            )


def _refused(name: str, rule: NameRule, place: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{quoted(name)} is not a valid {rule.what}: {why}; {_remedy(rule)}", place=place
    )


def _remedy(rule: NameRule) -> str:
    most = f"{rule.bytes_max} bytes" if rule.bytes_max else f"{rule.characters_max} characters"
    return f"use up to {most} of letters, digits, spaces inside and signs such as . _ -"

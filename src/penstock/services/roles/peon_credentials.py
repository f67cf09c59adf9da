"""Credentials of one task's peon, which its worker writes into the task's folder.

Owns the file and what a task's token allows. A peon gets no key of the installation: with its token
it may send the actions of its task, look up the other processes, and read its own stream. The
worker writes the file before each start of a peon, and again every `TASK_MADE_AGAIN_S`, because the
token counts for half an hour. So the token of a task that has ended soon counts nowhere. If a
worker was suspended for longer, the requests of its peons are refused until it has written the file
again; a peon repeats them.
"""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.access.access_control import AccessControl
from penstock.core.access.private_file import FileVersion, replace_private, version_of
from penstock.core.access.rules import Pattern, ResourceKind, Rule
from penstock.core.errors import PenstockError
from penstock.indexing.required_access import required_access
from penstock.indexing.task_spec import TASK_TYPE, parse_task_spec

if TYPE_CHECKING:
    from penstock.core.clock import Clock

CREDENTIALS_FILE: Final = "credentials.json"

_NO_KEY_BYTES: Final = 32  # of a random key, which no caller has

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeonCredentials:
    """Credentials of one task's peon.

    Attributes:
        sends: Token that it sends to other processes; empty: none.
        key: Key with which it checks the tokens of its callers; empty: none.
    """

    sends: str = field(default="", repr=False)
    key: bytes = field(default=b"", repr=False)

    def write(self, folder: Path) -> None:
        """Write them into the folder of a task.

        Raises:
            Unavailable: The file cannot be written.
        """
        content = json.dumps({"sends": self.sends, "key": self.key.hex()}).encode()
        replace_private(folder / CREDENTIALS_FILE, content, is_durable=False)

    @classmethod
    def read(cls, folder: Path) -> PeonCredentials:
        """Return the credentials in a task's folder; none if there is no file.

        With a file that is damaged, the peon sends no token, and accepts none.
        """
        path = folder / CREDENTIALS_FILE
        try:
            value = json.loads(path.read_bytes())
            sends, key = str(value["sends"]), bytes.fromhex(value["key"])
            if key:
                return cls(sends, key)
            problem = "it has no key"
        except FileNotFoundError:  # narrow: a worker without credentials
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = repr(error)
        _logger.error("%s is damaged, so the peon refuses all requests: %s", path, problem)
        return cls(key=secrets.token_bytes(_NO_KEY_BYTES))

    def access_control(self, task: str, clock: Clock) -> AccessControl:
        """Return the access control of the peon."""
        if not self.key:
            return AccessControl(None, clock)
        return AccessControl.for_task(task, self.key, clock)


class PeonToken:
    """The token that a peon sends: each call returns that of the file as it is now. Any thread.

    Args:
        folder: The folder of the task.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Replaced as a whole. The file is replaced, too, so it has another version.
        self._known: tuple[FileVersion | None, str] = (None, "")

    def __call__(self) -> str:
        """Return the token; empty: the worker has written none."""
        version = version_of(self._folder / CREDENTIALS_FILE)
        known, token = self._known
        if version is not None and version != known:
            # A file that cannot be read now changes nothing.
            token = PeonCredentials.read(self._folder).sends or token
            self._known = version, token
        return token


def credentials_of(access: AccessControl, task_id: str, folder: str) -> PeonCredentials:
    """Return the credentials of a task's peon.

    Raises:
        Unavailable: The worker has no key from which to derive them.
    """
    rules = _rules_of(Path(folder) / "task.json")
    return PeonCredentials(access.key.task_bearer(task_id, rules), access.key.peon_key(task_id))


def _rules_of(spec: Path) -> list[Rule]:
    """Return the rights of a task at the broker, which only streaming tasks use."""
    try:
        value = orjson.loads(spec.read_bytes())
        if not isinstance(value, dict) or value.get("type") != TASK_TYPE:
            return []
        needed = required_access(parse_task_spec(value))
    except (OSError, ValueError, PenstockError):  # narrow: the peon reports what is wrong
        return []
    return [
        Rule(frozenset({action}), Pattern(resource.kind, resource.name))
        for action, resource in needed
        if resource.kind is ResourceKind.TOPIC
    ]

"""The folder `access`: its files, the first secrets in it, and reading them again while running.

    access.toml       roles and principals, edited by people        (policy_file)
    credentials.json  users and tokens, written by commands          (credentials)
    operator.token    token of the command line on this host         (bearer_tokens)
    process.key       key of the tokens of processes and tasks       (bearer_tokens)
    last-used/        when each process last saw a credential        (last_used)
    browser-logins.json  links and sessions of browsers              (browser_logins)
    lock              held while one of the files is written         (private_file)

Owns the snapshot that a process decides with, and when a file takes effect.

Invariants: a file that is not valid changes nothing while a process runs, and is reported once. If
a process starts with one, it lets in only those who cannot depend on it: its problem is then the
reason of every refusal. `access.toml` takes effect once it has not changed for one interval of the
reader, because editors write files in parts, and the last part may have the rule that denies. Once
access is configured, it stays so until the process ends, even if files are deleted: some editors
delete a file before they write it again, and the user id must not grant everything in between.
An `access.toml` that became empty is not valid, because a failed save leaves it so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from penstock.core.access.bearer_tokens import new_token, token_digest
from penstock.core.access.credentials import (
    CREDENTIALS_BYTES_MAX,
    Credentials,
    StoredToken,
    parse_credentials,
)
from penstock.core.access.derived_tokens import new_key, parse_key
from penstock.core.access.operator_token import (
    OPERATOR_ID,
    OPERATOR_TOKEN_FILE,
    SECRET_FILE_BYTES_MAX,
    parse_operator_token,
)
from penstock.core.access.policy import Policy
from penstock.core.access.policy_file import POLICY_BYTES_MAX, parse_policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.private_file import (
    FileVersion,
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
    version_of,
)
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, PenstockError

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessFolder:
    """Paths in the folder; creating the object does not access the disk."""

    path: Path

    @property
    def rules(self) -> Path:
        """Return the path of `access.toml`."""
        return self.path / "access.toml"

    @property
    def credentials(self) -> Path:
        """Return the path of `credentials.json`."""
        return self.path / "credentials.json"

    @property
    def operator_token(self) -> Path:
        """Return the path of `operator.token`."""
        return self.path / OPERATOR_TOKEN_FILE

    @property
    def process_key(self) -> Path:
        """Return the path of `process.key`."""
        return self.path / "process.key"

    @property
    def last_used(self) -> Path:
        """Return the folder in which each process writes when it last saw a credential."""
        return self.path / "last-used"

    def make_secrets(self, clock: Clock) -> None:
        """Create the folder, `operator.token` and `process.key`, if they are missing.

        Several processes may do this at once: all of them use the files of the first one.

        Raises:
            Unavailable: A file cannot be written.
        """
        if self.operator_token.exists() and self.process_key.exists():
            return
        make_private_folder(self.path)
        with locked(self.path, clock):
            if not self.operator_token.exists():
                replace_private(self.operator_token, f"{new_token(OPERATOR_ID).text}\n".encode())
            if not self.process_key.exists():
                replace_private(self.process_key, new_key().encode())

    def read_rules(self) -> Policy:
        """Return the policy of `access.toml`; one without rules if the file does not exist.

        Raises:
            InvalidRequest: The file is not valid.
            Unavailable: It cannot be read.
        """
        try:
            content = read_bounded(self.rules, POLICY_BYTES_MAX, is_private=False)
        except NotFound:  # narrow: restores nothing
            return Policy()
        return _parse_rules(content, str(self.rules))


def _parse_rules(content: bytes, place: str) -> Policy:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"byte {error.start:,} is not UTF-8: save the file as UTF-8", place=place
        ) from None
    return parse_policy(text, place)


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """All that a process has read about access. Immutable.

    Attributes:
        generation: Number that grows with each change.
        policy: The rules.
        has_rules: Whether `access.toml` exists.
        credentials: Users and tokens.
        has_credentials: Whether there is a user or a token, or `credentials.json` is not valid.
        tokens: Tokens by id, with that of the operator.
        fingerprints: Fingerprints of all stored credentials.
        principals: Principals of users and tokens, that of the operator included, by their ids.
        process_key: The key of derived tokens; empty: none.
        was_configured: Whether access was configured before, in the life of this process.
    """

    generation: int = 0
    policy: Policy = field(default_factory=Policy)
    has_rules: bool = False
    credentials: Credentials = field(default_factory=Credentials)
    has_credentials: bool = False
    tokens: Mapping[str, StoredToken] = field(default_factory=dict)
    fingerprints: frozenset[str] = frozenset()
    principals: Mapping[str, Principal] = field(default_factory=dict)
    process_key: bytes = b""
    was_configured: bool = False

    @property
    def is_configured(self) -> bool:
        """Whether access is configured: then the user id of a peer grants nothing."""
        return self.has_rules or self.has_credentials or self.was_configured


class _WatchedFile(Generic[T]):
    """A file, its last valid content, and its problem. One thread at a time.

    Args:
        path: The file.
        parse: Returns the content, or raises `InvalidRequest` if it is not valid.
        bytes_max: Maximum size.
        is_private: As in `read_bounded`.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes, str], T], bytes_max: int, *, is_private: bool
    ) -> None:
        self._path = path
        self._parse = parse
        self._bytes_max = bytes_max
        self._is_private = is_private
        self._applied: FileVersion | None = None
        self._seen: FileVersion | None = None
        self._is_read = False
        self.content: T | None = None
        self.problem = ""

    def has_changed(self, *, must_rest: bool) -> bool:
        """Read the file if it has changed; return whether its content or its problem did.

        Args:
            must_rest: Wait until the file has the same version as at the last call.
        """
        version = version_of(self._path)
        if self._is_read and version == self._applied:
            self._seen = version
            return False
        if must_rest and version != self._seen:
            self._seen = version
            return False
        self._seen = version
        try:
            content = read_bounded(self._path, self._bytes_max, is_private=self._is_private)
            if not content and (self.content is not None or not self._is_read):
                # On a full disk, editors and redirections of a shell empty a file and then fail.
                raise InvalidRequest(
                    "it is empty, as after a save on a full disk: write its content again; if"
                    " there shall be no rules, write a comment (#), or delete the file",
                    place=str(self._path),
                )
            parsed: T | None = self._parse(content, str(self._path))
        except NotFound:  # narrow: restores nothing
            parsed = None
        except PenstockError as error:
            return self._failed(str(error), version, is_lasting=isinstance(error, InvalidRequest))
        if version_of(self._path) != version:
            return False  # it was changed meanwhile: at the next call
        self._is_read = True
        self._applied = version
        self.content = parsed
        self.problem = ""
        return True

    def _failed(self, problem: str, version: FileVersion | None, *, is_lasting: bool) -> bool:
        if is_lasting:
            self._is_read = True
            self._applied = version
        if problem == self.problem:
            return False
        self.problem = problem
        return True


class AccessReader:
    """Reads the files of a folder and returns snapshots. One thread at a time.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: AccessFolder) -> None:
        self._rules = _WatchedFile(folder.rules, _parse_rules, POLICY_BYTES_MAX, is_private=False)
        self._credentials = _WatchedFile(
            *(folder.credentials, parse_credentials, CREDENTIALS_BYTES_MAX), is_private=True
        )
        self._operator = _WatchedFile(
            *(folder.operator_token, parse_operator_token, SECRET_FILE_BYTES_MAX), is_private=True
        )
        self._key = _WatchedFile(
            *(folder.process_key, parse_key, SECRET_FILE_BYTES_MAX), is_private=True
        )
        self._no_rules = Policy()
        self._snapshot = AccessSnapshot(policy=self._no_rules)
        self._is_first = True

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of files whose last valid content applies. Any thread."""
        files = (self._rules, self._credentials, self._operator, self._key)
        return tuple(one.problem for one in files if one.problem)

    def read(self, *, must_rest: bool) -> AccessSnapshot:
        """Return the current snapshot; the same object if nothing has changed.

        Args:
            must_rest: Let a change of `access.toml` take effect at the next call only, unless the
                file was changed again.
        """
        must_rest = must_rest and not self._is_first
        changed = [
            self._rules.has_changed(must_rest=must_rest),
            *(
                one.has_changed(must_rest=False)
                for one in (self._credentials, self._operator, self._key)
            ),
        ]
        if any(changed):
            for problem, has_changed in zip(self._all_problems(), changed, strict=True):
                if has_changed and problem:
                    self._report(problem)
            self._snapshot = self._next()
        self._is_first = False
        return self._snapshot

    def _all_problems(self) -> tuple[str, ...]:
        files = (self._rules, self._credentials, self._operator, self._key)
        return tuple(one.problem for one in files)

    def _report(self, problem: str) -> None:
        if self._is_first:
            then = "until it is corrected, only processes and admin tokens are let in"
        else:
            then = "the previous content of the file stays in force"
        _logger.error("%s; %s", problem, then)

    def _next(self) -> AccessSnapshot:
        before = self._snapshot
        policy, has_rules = self._policy()
        credentials, has_credentials = self._all_credentials()
        tokens = credentials.stored_tokens()
        if self._operator.content is not None:
            tokens[OPERATOR_ID] = _operator(self._operator.content)
        principals = [one.principal for one in tokens.values()]
        principals += [
            one for one in map(credentials.user_principal, credentials.users) if one is not None
        ]
        return AccessSnapshot(
            before.generation + 1,
            policy,
            has_rules,
            credentials,
            has_credentials,
            MappingProxyType(tokens),
            frozenset(one.credential for one in principals),
            MappingProxyType({one.id: one for one in principals}),
            self._key.content or before.process_key,
            before.is_configured,
        )

    def _policy(self) -> tuple[Policy, bool]:
        """Return the rules, and whether there are any."""
        file, before = self._rules, self._snapshot
        if file.content is not None:
            return file.content, True
        if not file.problem:
            return self._no_rules, False
        if self._is_first:
            return Policy(closed=file.problem), True
        return before.policy, before.has_rules

    def _all_credentials(self) -> tuple[Credentials, bool]:
        """Return the users and tokens, and whether there are any."""
        file, before = self._credentials, self._snapshot
        if file.content is not None:
            return file.content, bool(file.content.users or file.content.tokens)
        if not file.problem:
            return Credentials(), False
        return before.credentials, self._is_first or before.has_credentials


def _operator(token: str) -> StoredToken:
    digest = token_digest(token.encode())
    principal = Principal(
        PrincipalKind.TOKEN, OPERATOR_ID, ("admin",), credential=digest.hex()[:32]
    )
    return StoredToken(digest, principal)

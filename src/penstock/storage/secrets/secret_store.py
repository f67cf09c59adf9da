"""The sealed secrets of an installation: one file of values, one file of keys.

Owns `secrets.json` and `key` in the folder of secrets, the lock, and the order of writes. Both
files are replaced atomically. At every moment, the keys on disk open each value on disk:

| step | `key` | `secrets.json` |
|---|---|---|
| the first value | a new key | none |
| | the same | the value |
| a rotation begins | a new key, and each key that is in use | values of the keys in use |
| | the same | all values, sealed with the new key |
| it ends | the new key | the same |

If a rotation is interrupted, the next one completes it. The operator may keep the keys elsewhere;
then the file `key` does not exist, and a rotation only seals all values again with the first key.

Writers lock the folder; readers do not. A reader that sees one file of before a rotation and one of
after it reads both again.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import Conflict, CorruptData, InvalidRequest, NotFound
from penstock.core.secret_names import check_secret_name
from penstock.storage.secrets.sealed_values import (
    KEY_BYTES,
    NONCE_BYTES,
    SealedValue,
    SealingKey,
    parse_keys,
    seal,
)

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

VALUES_FILE: Final = "secrets.json"
KEY_FILE: Final = "key"
FORMAT: Final = 1
SECRETS_MAX: Final = 10_000

_ADOPTED: Final = "adopted-"
# One more read than a rotation has moments at which two files do not match.
_READS_MAX: Final = 3
_SET_HOW: Final = "set it with `penstock secret set NAME`"


@dataclass(frozen=True, slots=True)
class SecretEntry:
    """The parts of a sealed secret that may be shown.

    Attributes:
        name: Its name.
        version: Number of its value among those of its name.
        created_ms: Time of its first value, in epoch milliseconds.
        changed_ms: Time of its value, in epoch milliseconds.
    """

    name: str
    version: int
    created_ms: int
    changed_ms: int


class SecretStore:
    """Reads and changes the sealed secrets of a folder. Safe for use by several threads.

    Args:
        folder: The folder of secrets; the first change creates it.
        fs: A file system whose files only their owner can read.
        clock: Time.
        keys_elsewhere: Returns the text of the keys, if the operator keeps them; None: the file
            `key` has them.
        random_bytes: Source of keys and nonces.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem,
        clock: Clock,
        keys_elsewhere: Callable[[], str] | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._folder = folder
        self._fs = fs
        self._clock = clock
        self._keys_elsewhere = keys_elsewhere
        self._random_bytes = random_bytes
        self._values_path = posixpath.join(folder, VALUES_FILE)
        self._key_path = posixpath.join(folder, KEY_FILE)

    def entries(self) -> list[SecretEntry]:
        """Return the secrets, sorted by name; no key is needed.

        Raises:
            CorruptData: The file of values is damaged.
            Unavailable: The disk does not answer.
        """
        return [
            SecretEntry(one.name, one.version, one.created_ms, one.changed_ms)
            for one in self._read().values()
        ]

    def has(self, name: str) -> bool:
        """Return whether a secret has a value; raises as `entries`."""
        return name in self._read()

    def value(self, name: str) -> str:
        """Return the value of a secret.

        Raises:
            NotFound: No secret has this name.
            InvalidRequest: It cannot be opened with the present keys.
            CorruptData: A file is damaged.
            Unavailable: The disk or the source of the keys does not answer.
        """
        check_secret_name(name)
        for attempt in range(_READS_MAX):
            found = self._read().get(name)
            if found is None:
                raise NotFound(f"unknown secret {name!r}: {_SET_HOW}")
            keys = self._keys()
            if attempt + 1 == _READS_MAX or any(key.id == found.key_id for key in keys):
                return found.open(keys)
        raise AssertionError  # the last attempt returns or raises

    def set(self, name: str, value: str) -> SecretEntry:
        """Seal a value durably, in place of the one before.

        Raises:
            InvalidRequest: The name or the value is invalid, or the key of other values is missing.
            Conflict: Another process changes the secrets.
            CorruptData: A file is damaged; nothing is changed.
            Unavailable: The disk or the source of the keys does not answer.
        """
        check_secret_name(name)
        with self._locked():
            return self._set(name, value)

    def adopt(self, value: str) -> str:
        """Seal a value under a name that is derived from it; return the name.

        The same value gets the same name as long as the key is the same, so that it is stored once.
        Raises as `set`.
        """
        with self._locked():
            key = self._sealing_key(self._read())
            name = f"{_ADOPTED}{key.fingerprint(value)}"
            if name not in self._read():
                self._set(name, value)
            return name

    def remove(self, name: str) -> None:
        """Remove a secret durably.

        Raises:
            NotFound: No secret has this name.
            Conflict: Another process changes the secrets.
            CorruptData: A file is damaged; nothing is changed.
            Unavailable: The disk does not answer.
        """
        check_secret_name(name)
        with self._locked():
            values = self._read()
            if values.pop(name, None) is None:
                raise NotFound(f"unknown secret {name!r}: penstock secret list shows all of them")
            self._write(values)

    def rotate(self) -> int:
        """Seal all values with another key; return their number.

        The other key is a new one, or the first one that the operator gives. Versions and times of
        the values stay. All values are opened before anything is written.

        Raises:
            InvalidRequest: A value cannot be opened; nothing is changed.
            Conflict: Another process changes the secrets.
            CorruptData: A file is damaged; nothing is changed.
            Unavailable: The disk or the source of the keys does not answer; repeat the rotation.
        """
        with self._locked():
            values = self._read()
            if not values and self._keys_elsewhere is None and not self._fs.exists(self._key_path):
                return 0
            keys = self._keys()
            opened = {name: one.open(keys) for name, one in values.items()}
            if self._keys_elsewhere is not None:
                self._write(self._sealed_again(keys[0], values, opened))
                return len(values)
            key = SealingKey(self._random_bytes(KEY_BYTES))
            used = {one.key_id for one in values.values()}
            self._write_keys([key, *(one for one in keys if one.id in used)])
            self._write(self._sealed_again(key, values, opened))
            self._write_keys([key])
            return len(values)

    def _set(self, name: str, value: str) -> SecretEntry:
        values = self._read()
        if len(values) >= SECRETS_MAX and name not in values:
            raise InvalidRequest(f"there are {SECRETS_MAX} secrets already: remove some")
        key = self._sealing_key(values)
        now, before = self._clock.now_ms(), values.get(name)
        values[name] = seal(
            key,
            name,
            value,
            self._random_bytes(NONCE_BYTES),
            version=1 if before is None else before.version + 1,
            created_ms=now if before is None else before.created_ms,
            changed_ms=now,
        )
        self._write(values)
        one = values[name]
        return SecretEntry(name, one.version, one.created_ms, one.changed_ms)

    def _sealed_again(
        self, key: SealingKey, values: Mapping[str, SealedValue], opened: Mapping[str, str]
    ) -> dict[str, SealedValue]:
        return {
            name: seal(
                key,
                name,
                opened[name],
                self._random_bytes(NONCE_BYTES),
                version=one.version,
                created_ms=one.created_ms,
                changed_ms=one.changed_ms,
            )
            for name, one in values.items()
        }

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._fs.mkdir(self._folder)
        try:
            lock = self._fs.lock_folder(self._folder)
        except Conflict:
            raise Conflict(
                "another command changes the secrets at this moment: try again when it has ended"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _sealing_key(self, values: Mapping[str, SealedValue]) -> SealingKey:
        """Return the key for new values; the first one is made here."""
        is_ours = self._keys_elsewhere is None
        if is_ours and not values and not self._fs.exists(self._key_path):
            self._write_keys([SealingKey(self._random_bytes(KEY_BYTES))])
        return self._keys()[0]

    def _keys(self) -> Sequence[SealingKey]:
        if self._keys_elsewhere is not None:
            return parse_keys(self._keys_elsewhere())
        try:
            content = self._fs.read_bytes(self._key_path)
        except NotFound:
            raise InvalidRequest(
                f"the key of the secrets, {self._key_path}, is missing: put it back. If it is lost,"
                f" move {self._values_path} away and set the secrets again"
            ) from None
        return parse_keys(content.decode("ascii", "replace"))

    def _write_keys(self, keys: Sequence[SealingKey]) -> None:
        self._fs.write_atomically(self._key_path, "".join(f"{k.text}\n" for k in keys).encode())

    def _read(self) -> dict[str, SealedValue]:
        try:
            content = self._fs.read_bytes(self._values_path)
        except NotFound:
            return {}
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            raise self._damage("it is not JSON") from None
        if not isinstance(found, dict) or found.keys() != {"format", "secrets"}:
            raise self._damage("it does not have the form of sealed secrets")
        if found["format"] != FORMAT:
            raise InvalidRequest(
                f"{self._values_path} has another format than {FORMAT}: install the release that"
                " wrote it, or a newer one"
            )
        secrets = found["secrets"]
        if not isinstance(secrets, dict):
            raise self._damage("it does not have the form of sealed secrets")
        try:
            return {
                check_secret_name(name): SealedValue.from_json(name, secrets[name])
                for name in sorted(secrets)
            }
        except InvalidRequest as error:
            raise self._damage(str(error)) from None

    def _write(self, values: Mapping[str, SealedValue]) -> None:
        content = {
            "format": FORMAT,
            "secrets": {name: values[name].to_json() for name in sorted(values)},
        }
        data = orjson.dumps(content, option=orjson.OPT_INDENT_2)
        self._fs.write_atomically(self._values_path, data)

    def _damage(self, reason: str) -> CorruptData:
        return CorruptData(
            self._values_path, None, f"{reason}: put a backup of the file back, or move it away"
        )

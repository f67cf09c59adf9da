"""The file of sealed secrets: changed as a whole, and readable after a crash at any step."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, CorruptData, InvalidRequest, NotFound, PenstockError
from penstock.storage.disk import OwnerFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.storage.secrets.sealed_values import SealingKey
from penstock.storage.secrets.secret_store import KEY_FILE, VALUES_FILE, SecretStore
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

FOLDER = "/data/secrets"
VALUES = {"one": "first", "two": "second", "three": "third"}


def on(fs: FileSystem, folder: str = FOLDER) -> SecretStore:
    return SecretStore(folder, fs, SystemClock())


def filled(fs: CrashableFileSystem) -> SecretStore:
    store = on(fs)
    for name, value in VALUES.items():
        store.set(name, value)
    return store


def content(store: SecretStore) -> dict[str, str]:
    return {one.name: store.value(one.name) for one in store.entries()}


def test_a_secret_is_set_changed_listed_and_removed() -> None:
    store = on(CrashableFileSystem())
    assert store.entries() == []
    with pytest.raises(NotFound, match="penstock secret set"):
        store.value("shop")
    first = store.set("shop", "hush")
    second = store.set("shop", "quiet")
    assert (first.version, second.version) == (1, 2)
    assert second.created_ms == first.created_ms
    assert store.value("shop") == "quiet"
    assert store.entries() == [second]
    store.remove("shop")
    with pytest.raises(NotFound):
        store.remove("shop")
    assert store.entries() == []


@pytest.mark.parametrize("name", ["", "a/b", "../key", "a b", "ä"])
def test_a_wrong_name_changes_nothing(name: str) -> None:
    fs = CrashableFileSystem()
    for change in (lambda: on(fs).set(name, "x"), lambda: on(fs).remove(name)):
        with pytest.raises(InvalidRequest, match="invalid name of a secret"):
            change()
    assert not fs.exists(FOLDER)


def set_two(store: SecretStore) -> object:
    return store.set("two", "new")


def set_four(store: SecretStore) -> object:
    return store.set("four", "new")


def remove_two(store: SecretStore) -> object:
    return store.remove("two")


def rotate(store: SecretStore) -> object:
    return store.rotate()


AFTER = {
    set_two: VALUES | {"two": "new"},
    set_four: VALUES | {"four": "new"},
    remove_two: {n: v for n, v in VALUES.items() if n != "two"},
    rotate: VALUES,
}


@pytest.mark.parametrize("change", AFTER, ids=lambda one: one.__name__)
@pytest.mark.parametrize("keep_bytes", [0, 40, 500])
def test_a_power_loss_at_any_step_leaves_all_values_readable(
    change: Callable[[SecretStore], object], keep_bytes: int
) -> None:
    after, reached = AFTER[change], 0
    for step in itertools.count(1):
        fs = CrashableFileSystem()
        filled(fs)
        fs.kill_at(fs.steps + step, keep_bytes=keep_bytes)
        try:
            change(on(fs))
        except PowerLoss:
            reached += 1
        else:
            break
        for seed in range(5):
            store = on(fs.crash(seed))
            assert content(store) in (VALUES, after)
            change_again = AFTER[change] if change is not remove_two else None
            if change_again is not None:  # the command is repeated
                change(store)
                assert content(store) == after
    assert reached >= 4
    store = on(fs.crash(1))
    assert content(store) == after, "what was answered is durable"


@pytest.mark.parametrize("change", AFTER, ids=lambda one: one.__name__)
def test_a_failed_disk_at_any_step_leaves_all_values_readable(
    change: Callable[[SecretStore], object],
) -> None:
    for step in itertools.count(1):
        fs = CrashableFileSystem()
        store = filled(fs)
        fs.fail_at(fs.steps + step)
        try:
            change(store)
        except PenstockError:
            fs.forget_faults()
            assert content(store) in (VALUES, AFTER[change])
            assert store.set("two", "later").version >= 1
            assert store.value("two") == "later"
        else:
            break


def test_a_power_loss_during_the_first_command_leaves_nothing_or_the_secret() -> None:
    for step in itertools.count(1):
        fs = CrashableFileSystem()
        fs.mkdir("/data")
        fs.kill_at(fs.steps + step)
        try:
            on(fs).set("one", "first")
        except PowerLoss:
            store = on(fs.crash(step))
            assert content(store) in ({}, {"one": "first"})
            store.set("one", "second")
            assert store.value("one") == "second"
        else:
            break


def test_a_rotation_makes_a_new_key_and_forgets_the_old_one() -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    before = store.entries()
    old, sealed = fs.read_bytes(f"{FOLDER}/{KEY_FILE}"), fs.read_bytes(f"{FOLDER}/{VALUES_FILE}")
    assert store.rotate() == len(VALUES)
    new = fs.read_bytes(f"{FOLDER}/{KEY_FILE}")
    assert new != old
    assert len(new.split()) == 1
    assert (content(store), store.entries()) == (VALUES, before)
    fs.write_atomically(f"{FOLDER}/{VALUES_FILE}", sealed)
    with pytest.raises(InvalidRequest, match="which is not given"):
        store.value("one")


def test_a_rotation_with_a_value_that_cannot_be_opened_changes_nothing() -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    found = json.loads(fs.read_bytes(f"{FOLDER}/{VALUES_FILE}"))
    found["secrets"]["two"]["version"] = 7
    fs.write_atomically(f"{FOLDER}/{VALUES_FILE}", json.dumps(found).encode())
    before = {name: fs.read_bytes(f"{FOLDER}/{name}") for name in (KEY_FILE, VALUES_FILE)}
    with pytest.raises(InvalidRequest, match="'two' was changed"):
        store.rotate()
    assert before == {name: fs.read_bytes(f"{FOLDER}/{name}") for name in before}


def test_a_reader_between_the_steps_of_a_rotation_reads_again() -> None:
    fs = CrashableFileSystem()
    store, others = filled(fs), []
    read = fs.read_bytes

    def rotated_after_the_values(path: str) -> bytes:
        content = read(path)
        if path.endswith(VALUES_FILE) and not others:
            others.append(on(fs))
            others[0].rotate()
        return content

    fs.read_bytes = rotated_after_the_values  # type: ignore[method-assign]
    assert store.value("one") == "first"
    assert others


def test_keys_of_the_operator_are_used_and_never_written() -> None:
    fs, keys = CrashableFileSystem(), [SealingKey(b"a" * 32)]
    store = SecretStore(FOLDER, fs, SystemClock(), lambda: "\n".join(key.text for key in keys))
    store.set("one", "first")
    assert fs.listdir(FOLDER) == [VALUES_FILE]
    keys.insert(0, SealingKey(b"b" * 32))
    assert store.value("one") == "first"
    assert store.rotate() == 1
    del keys[1]
    assert store.value("one") == "first"
    keys[0] = SealingKey(b"c" * 32)
    with pytest.raises(InvalidRequest, match="which is not given"):
        store.value("one")
    assert fs.listdir(FOLDER) == [VALUES_FILE]


def test_a_lost_key_is_not_replaced_by_a_new_one() -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    fs.unlink(f"{FOLDER}/{KEY_FILE}")
    for use in (lambda: store.value("one"), lambda: store.set("four", "x"), store.rotate):
        with pytest.raises(InvalidRequest, match="is missing: put it back"):
            use()
    assert not fs.exists(f"{FOLDER}/{KEY_FILE}")


@given(st.data())
def test_no_changed_byte_of_the_file_changes_a_value(data: st.DataObject) -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    size = len(fs.read_bytes(f"{FOLDER}/{VALUES_FILE}"))
    place, change = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, 255))

    def flip(content: bytearray) -> None:
        content[place] ^= change

    fs.damage(f"{FOLDER}/{VALUES_FILE}", flip)
    for name, value in VALUES.items():
        try:
            assert store.value(name) == value
        except PenstockError as error:
            assert value not in str(error)  # noqa: PT017 - either may happen


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 1, "secrets": []}', b'"\xff"'])
def test_a_damaged_file_is_never_replaced(damage: bytes) -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    fs.write_atomically(f"{FOLDER}/{VALUES_FILE}", damage)
    for use in (lambda: store.value("one"), lambda: store.set("one", "x"), store.rotate):
        with pytest.raises(CorruptData):
            use()
    assert fs.read_bytes(f"{FOLDER}/{VALUES_FILE}") == damage


def test_a_newer_format_is_refused() -> None:
    fs = CrashableFileSystem()
    store = filled(fs)
    fs.write_atomically(f"{FOLDER}/{VALUES_FILE}", b'{"format": 2, "secrets": {}}')
    with pytest.raises(InvalidRequest, match="install the release"):
        store.set("one", "x")


def test_the_same_value_is_adopted_once() -> None:
    store = on(CrashableFileSystem())
    name = store.adopt("hush")
    assert store.adopt("hush") == name != store.adopt("quiet")
    assert store.value(name) == "hush"
    assert [one.version for one in store.entries()] == [1, 1]
    assert "hush" not in name


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    store = on(OwnerFileSystem(), str(folder))
    store.set("one", "first")
    store.rotate()
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.iterdir())}
    assert modes == {"secrets": 0o700, KEY_FILE: 0o600, VALUES_FILE: 0o600}
    for name in (KEY_FILE, VALUES_FILE):
        (folder / name).chmod(0o640)
        with pytest.raises(InvalidRequest, match="other users of this host may read or change it"):
            store.value("one")
        (folder / name).chmod(0o600)
    assert store.value("one") == "first"


def test_one_command_at_a_time_changes_the_secrets(tmp_path: Path) -> None:
    fs = OwnerFileSystem()
    store = on(fs, str(tmp_path))
    store.set("one", "first")
    lock = fs.lock_folder(str(tmp_path))
    for change in (lambda: store.set("one", "x"), lambda: store.remove("one"), store.rotate):
        with pytest.raises(Conflict, match="another command changes the secrets"):
            change()
    assert store.value("one") == "first", "reading needs no lock"
    lock.release()
    store.remove("one")

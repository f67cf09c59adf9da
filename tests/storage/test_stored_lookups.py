"""The contract of stored lookups, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import Conflict, Full
from penstock.storage.metadata import AuditRow, MetadataStore
from penstock.storage.metadata.tables import lookups
from penstock.storage.metadata.tables.lookups import NEVER_MS, LookupContent, LookupRow

if TYPE_CHECKING:
    from tests.storage.conftest import HandClock

OLD, NEW = LookupContent(b"old", 1, 10), LookupContent(b"new", 2, 20)


def put(store: MetadataStore, name: str = "l", content: LookupContent = OLD) -> LookupRow:
    return store.lookups.put(name, {"ä": name}, content, store._database.now_ms())


def claimed(store: MetadataStore, until_ms: int = 1 << 50) -> LookupRow:
    found = store.lookups.claim(until_ms)
    assert found is not None
    return found


def test_a_lookup_is_stored_with_its_rows_and_its_author(store: MetadataStore) -> None:
    entry = AuditRow("l", lookups.AUDIT_TYPE, "me", "why", {"spec": 1})
    first = store.lookups.put("l", {"a": 1}, OLD, NEVER_MS, entry=entry)
    assert store.lookups.list() == [first]
    assert store.lookups.find("L") == first
    assert store.lookups.content("l") == (1, b"old")
    assert [(one.author, one.payload) for one in store.audit.list("l")] == [("me", {"spec": 1})]
    second = put(store, content=NEW)
    assert (second.spec_version, second.content_version, second.rows) == (2, 2, 2)


def test_names_that_differ_in_case_are_one_name(store: MetadataStore) -> None:
    put(store, "Länder")
    with pytest.raises(Conflict, match="Länder"):
        put(store, "LÄNDER")
    assert store.lookups.delete("Länder")
    assert put(store, "LÄNDER").spec_version == 1


def test_a_deleted_lookup_is_gone_and_its_numbers_are_not_used_again(store: MetadataStore) -> None:
    put(store)
    assert store.lookups.delete("l")
    assert not store.lookups.delete("l")
    assert store.lookups.list() == []
    assert store.lookups.find("l") is None
    assert store.lookups.content("l") is None
    assert store.lookups.claim(1 << 50, name="l") is None
    again = put(store)
    assert (again.spec_version, again.content_version) == (2, 2)


def test_a_lookup_is_refreshed_when_it_is_due(store: MetadataStore, clock: HandClock) -> None:
    put(store)
    claim = claimed(store, clock.ms + 50)
    assert store.lookups.claim(1 << 50) is None  # another process has it
    assert store.lookups.refreshed(claim, NEW, clock.ms + 100)
    assert store.lookups.content("l") == (2, b"new")
    clock.ms += 100
    again = claimed(store, clock.ms + 50)
    assert store.lookups.refreshed(again, NEW, NEVER_MS)
    assert store.lookups.content("l") == (2, b"new")  # equal rows do not make a version
    found = store.lookups.find("l")
    assert found is not None
    assert (found.loaded_ms, found.due_ms) == (clock.ms, NEVER_MS)


def test_a_failed_refresh_keeps_the_rows_and_its_reason(store: MetadataStore) -> None:
    put(store)
    assert store.lookups.failed(claimed(store), "no file", 0)
    assert store.lookups.failed(claimed(store), "no host", 0)
    found = store.lookups.find("l")
    assert found is not None
    assert (found.failures, found.reason, found.rows) == (2, "no host", 1)
    assert store.lookups.content("l") == (1, b"old")
    assert store.lookups.refreshed(claimed(store), OLD, 0)
    found = store.lookups.find("l")
    assert found is not None
    assert (found.failures, found.failed_ms, found.reason) == (0, 0, "")


def test_the_refresh_that_began_last_counts(store: MetadataStore, clock: HandClock) -> None:
    put(store)
    first = claimed(store, clock.ms + 5)
    second = store.lookups.claim(clock.ms + 5, name="l")
    assert second is not None
    assert not store.lookups.refreshed(first, OLD, NEVER_MS)
    assert not store.lookups.failed(first, "late", NEVER_MS)
    put(store, content=NEW)  # a new spec, whose rows are newer than those of any claim before
    assert not store.lookups.refreshed(second, OLD, NEVER_MS)
    assert store.lookups.content("l") == (2, b"new")
    third = store.lookups.claim(clock.ms + 5, name="l")
    assert third is not None
    assert store.lookups.delete("l")
    assert not store.lookups.refreshed(third, OLD, NEVER_MS)
    assert store.lookups.content("l") is None


def test_the_claim_of_a_process_that_ended_expires(store: MetadataStore, clock: HandClock) -> None:
    put(store)
    lost = claimed(store, clock.ms + 50)
    clock.ms += 51
    claimed(store)
    assert not store.lookups.refreshed(lost, NEW, NEVER_MS)


def test_the_number_and_the_size_of_all_lookups_are_bounded(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 2)
    monkeypatch.setattr(lookups, "TOTAL_BYTES_MAX", 25)
    put(store, "a")
    put(store, "b")
    with pytest.raises(Full, match="2 lookups"):
        put(store, "c")
    put(store, "b")  # the same one again
    with pytest.raises(Full, match="delete lookups"):
        put(store, "b", NEW)
    with pytest.raises(Full, match="delete lookups"):
        store.lookups.refreshed(claimed(store), NEW, 0)
    assert [one.rows for one in store.lookups.list()] == [1, 1]


def test_lookups_put_by_many_threads_at_once_each_have_a_number(store: MetadataStore) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                put(store)
        except BaseException as error:  # shown below
            errors.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors
    found = store.lookups.find("l")
    assert found is not None
    assert (found.spec_version, found.content_version) == (9, 9)
    assert store.lookups.content("l") == (9, b"old")

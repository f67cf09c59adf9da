"""The counts of content without files, and its written files without a repository."""

from __future__ import annotations

import pytest

from penstock.core.errors import Closed
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.content.options import ContentOptions
from penstock.storage.content.references import References
from penstock.storage.content.resources import CONTAINER
from penstock.storage.content.writer import WrittenFiles
from penstock.testing.memory_disk import CrashableFileSystem

A, B = (ResourceClaim(name, CONTAINER, "0") for name in "ab")


def test_a_file_is_released_when_it_ended_and_its_last_reference_went() -> None:
    references = References()
    references.begin(A)
    references.wrote(A)
    references.adjust({A: -1})
    assert references.released() == ()
    references.end(A)
    assert references.released() == (A,)
    references.adjust({A: 2, B: 0})
    assert references.released() == ()
    assert references.totals() == (1, 2)


def test_what_is_released_is_taken_once_and_not_if_somebody_refers_to_it_again() -> None:
    references = References()
    references.recover({A: 1, B: 1})
    references.adjust({A: -1, B: -1})
    references.adjust({B: 1})
    assert references.take_released([A, B]) == [A]
    assert references.take_released([A, B]) == []
    assert references.counts() == {B: 1}


def written_files(fs: CrashableFileSystem, references: References) -> WrittenFiles:
    fs.mkdir("/c")
    options = ContentOptions(resource_bytes=10, sections=1, open_files=1)
    return WrittenFiles(fs, "/c", options, 1, references)


def test_a_file_is_lent_to_one_writer_and_again_until_it_is_full() -> None:
    references = References()
    files = written_files(CrashableFileSystem(), references)
    first, second = files.take(), files.take()
    assert first.claim != second.claim
    first.write(b"12345")
    claim = files.finish(first, 0)
    files.abort(second)  # one waits already, so this one ends
    assert references.released() == (second.claim,)
    again = files.take()
    assert again is first
    again.write(b"67890")
    assert files.finish(again, 0).offset == claim.length
    assert files.take() is not first
    assert references.counts() == {first.claim: 2}


def test_what_was_finished_is_durable_after_a_sync_and_nothing_is_lent_after_the_end() -> None:
    fs = CrashableFileSystem()
    files = written_files(fs, References())
    resource = files.take()
    resource.write(b"abc")
    files.finish(resource, 0)
    files.sync()
    assert not files.refuse()
    assert files.refuse()
    files.close()
    with pytest.raises(Closed):
        files.take()
    after = fs.crash(3)
    (name,) = after.listdir("/c/0")
    assert after.read_bytes(f"/c/0/{name}") == b"abc"

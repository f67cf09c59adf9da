"""The content repository while several threads are in it, each race at the worst moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage.content.content_repository import ContentOptions, ContentRepository
from penstock.storage.content.resources import ResourceFile
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock


def test_a_file_that_ends_while_it_is_synced_is_closed_after_the_sync(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ContentOptions(open_files=1, buffer_bytes=1)
    content = ContentRepository.open(
        str(tmp_path), fs=OsFileSystem(), clock=VirtualClock(), options=options
    )
    first = content.put(b"first")
    again = content.write()
    again.write(b"more")  # in the same file
    content.put(b"second")  # in another, which is the one that is kept open
    syncing = ResourceFile.sync

    def sync(resource: ResourceFile) -> None:
        again.abort()  # nobody needs the first file any more
        syncing(resource)

    monkeypatch.setattr(ResourceFile, "sync", sync)
    content.sync()
    content.sync()
    assert first is not None
    assert content.check(first)
    content.close()

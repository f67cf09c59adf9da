"""A channel's journal is left alone once the channel is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.channel.keeping import ChannelKeeper
from penstock.broker.channel.state import ChannelState
from penstock.core.errors import Unavailable
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock


def test_nothing_is_written_after_the_close(tmp_path: Path) -> None:
    async def live() -> None:
        folder = tmp_path / "channel"
        journal = Journal.open(str(folder), fs=OsFileSystem(), clock=VirtualClock())
        state = ChannelState([0])
        keeper = ChannelKeeper(journal, state)
        state.defer(0, 0, 3, 5_000)
        await keeper.keep(durable=True)
        await keeper.close()
        for path in folder.iterdir():
            path.unlink()  # as the deletion of its topic does
        state.seek(0, 1)
        keeper.note()
        for durable in (True, False):
            with pytest.raises(Unavailable, match="deleted meanwhile"):
                await keeper.keep(durable=durable)
        assert not keeper.flush()
        assert not list(folder.iterdir())

    asyncio.run(live())

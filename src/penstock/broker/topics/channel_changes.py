"""Changes of channels (create, pause, delete) while the event loop serves clients.

Owns the channels that are being created or deleted: requests for a channel that is being created
share one creation, and a channel is created again only after its deletion has ended. Does not own
the thread that runs the changes (`topic_changes`) or their effects on the disk (`channel_names`).

Invariant: after any exception, memory follows the disk: the channels of a topic, and their pauses,
equal those in ``topic.json`` when a change ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.topic_names import is_ephemeral
from penstock.core.errors import NotFound, Unavailable
from penstock.core.loop_tasks import report, retrieve_exception, run_shielded, start_awaited

if TYPE_CHECKING:
    from penstock.broker.channel.channel import Channel
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_changes import TopicChanges
    from penstock.broker.topics.topic_registry import Topics

T = TypeVar("T")


class ChannelChanges:
    """Changes the channels of one broker. Used on its event loop.

    Args:
        topics: The topics.
        changes: Runs the changes, one after the other with those of topics.
    """

    def __init__(self, topics: Topics, changes: TopicChanges) -> None:
        self._topics = topics
        self._changes = changes
        self._creating: dict[tuple[Topic, str], asyncio.Task[Channel]] = {}
        self._deleting: dict[tuple[Topic, str], asyncio.Task[None]] = {}
        self._undoing: dict[tuple[Topic, str], asyncio.Task[None]] = {}  # also in `_deleting`

    async def find_or_create(
        self, topic: Topic, name: str, starts: tuple[int, ...] | None = None
    ) -> Channel:
        """Return a channel of a topic, created if it does not exist.

        The first channel begins at the topic's position, others with the next message.

        Args:
            topic: The topic.
            name: The channel's name.
            starts: Offsets at which a new channel begins instead, by stream partition.

        Raises:
            InvalidRequest: The name is invalid.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        found = topic.channels.get(name)
        if found is not None:
            return found
        creating = self._creating.get((topic, name))
        # One that has ended, but is not forgotten yet, may have created a channel that was deleted.
        if creating is None or creating.done():
            creating = start_awaited(self._create(topic, name, starts))
            creating.add_done_callback(partial(_forget, self._creating, (topic, name)))
            self._creating[topic, name] = creating
        return await asyncio.shield(creating)

    async def delete(self, topic: Topic, name: str) -> None:
        """Delete a channel and its files, and close its consumers.

        An ephemeral topic is deleted with its last channel.

        Raises:
            NotFound: The topic has no channel of this name.
            Unavailable: The disk is full; the channel still exists.
        """
        channel = topic.channel(name)
        # The task begins in a later iteration of the loop, after the channel is detached.
        deleting = start_awaited(self._delete(topic, channel))
        try:
            deleting.add_done_callback(partial(self._end_deletion, topic, channel))
            self._deleting[topic, name] = deleting
            # Detach it before its files are deleted, so that nothing is written to them afterwards.
            topic.detach(name)
        except BaseException:
            deleting.cancel()  # it has not begun
            raise
        self._changes.notify(topic.name)
        try:
            await asyncio.shield(deleting)
        except BaseException:
            undoing = self._undoing.get((topic, name))
            if deleting.done() and undoing is not None:
                await asyncio.wait([undoing])
            raise
        await self._delete_unused(topic)

    def _end_deletion(self, topic: Topic, channel: Channel, deleting: asyncio.Task[None]) -> None:
        key = (topic, channel.name)
        _forget(self._deleting, key, deleting)
        is_left = channel.name in topic.file.channels and channel.name not in topic.channels
        if is_left and key not in self._deleting and not topic.closed:
            # The task failed before it began. A creation waits for this task, too.
            undoing = start_awaited(self._undo_deletion(topic, channel))
            for tasks in (self._deleting, self._undoing):
                undoing.add_done_callback(partial(_forget, tasks, key))
                tasks[key] = undoing

    async def _delete(self, topic: Topic, channel: Channel) -> None:
        name = channel.name
        try:
            await channel.shut()
            # The current value: other channels may have been created or deleted meanwhile.
            held = topic.held
            await self._changes.run(lambda: self._topics.channels.drop(topic, name, held))
        except BaseException:
            if name in topic.file.channels and not topic.closed:
                await self._undo_deletion(topic, channel)
            raise

    async def _undo_deletion(self, topic: Topic, channel: Channel) -> None:
        # `topic.json` still lists it; messages in flight or not written are redelivered.
        with contextlib.suppress(Exception):
            await channel.shut()  # shut or not: two journals must not write one file
        await self._attach_again(topic, channel.name)

    async def _delete_unused(self, topic: Topic) -> None:
        """Delete an ephemeral topic that has no channel left."""
        awaited = any(wanted is topic for wanted, _ in self._creating)
        if is_ephemeral(topic.name) and not (topic.channels or topic.closed or awaited):
            with contextlib.suppress(NotFound):
                await self._changes.delete(topic.name)

    async def set_paused(self, topic: Topic, name: str, *, paused: bool) -> None:
        """Pause or unpause a channel durably.

        Raises:
            NotFound: The topic has no channel of this name.
            Unavailable: The disk is full.
        """
        channel = topic.channel(name)
        await run_shielded(
            self._set_paused(topic, channel, paused=paused),
            lambda: channel.set_paused(paused=topic.file.channels.get(name, channel.paused)),
        )

    async def _set_paused(self, topic: Topic, channel: Channel, *, paused: bool) -> None:
        name = channel.name
        try:
            await self._changes.run(
                lambda: self._topics.channels.set_paused(topic, name, paused=paused)
            )
        except BaseException:
            paused = topic.file.channels.get(name, channel.paused)
            raise
        finally:
            channel.set_paused(paused=paused)

    async def _create(self, topic: Topic, name: str, starts: tuple[int, ...] | None) -> Channel:
        # Its closed consumers may reconnect before its files are deleted. After a deletion that
        # failed, another one may begin before this task continues.
        while (deleting := self._deleting.get((topic, name))) is not None:
            await asyncio.wait([deleting])
            await asyncio.sleep(0)  # until its callback has run, which may begin to undo it
        if name in topic.channels:
            return topic.channels[name]  # the last deletion failed
        # Nothing is awaited from here to the creation: two journals must not write one file.
        begin = topic.position() if starts is None else starts
        try:
            channel = await self._changes.run(
                lambda: self._topics.channels.create(topic, name, begin)
            )
        except BaseException:
            if name in topic.file.channels and not topic.closed:
                await self._attach_again(topic, name)
            raise
        if topic.closed:
            await channel.shut()
            raise Unavailable(f"topic {topic.name} was deleted meanwhile: try again")
        try:
            self._attach(topic, channel)
        except BaseException:
            self._attach(topic, channel)  # it exists on disk
            raise
        return channel

    async def _attach_again(self, topic: Topic, name: str) -> None:
        """Attach a channel that exists on disk; retry once, as another error may occur."""
        for is_last in (False, True):
            try:
                channel = await self._changes.run(lambda: self._topics.channels.load(topic, name))
                self._attach(topic, channel)
            except Exception as error:  # noqa: BLE001 - the second failure is reported
                if is_last:
                    # Retention keeps its messages, and the next SUB or restart loads it.
                    report(f"topic {topic.name}: channel {name} cannot be loaded", error)
            else:
                return

    def _attach(self, topic: Topic, channel: Channel) -> None:
        topic.attach(channel)
        self._topics.parts.apply_options(topic)  # its options may have changed meanwhile
        self._changes.notify(topic.name)


def _forget(
    tasks: dict[tuple[Topic, str], asyncio.Task[T]], key: tuple[Topic, str], task: asyncio.Task[T]
) -> None:
    if tasks.get(key) is task:  # not one that began in the same iteration of the loop
        del tasks[key]
    retrieve_exception(task)

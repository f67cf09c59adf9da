"""Replay of a FlowFile: a new one with the retained content enters the queue of the old one.

Owns the order of the steps, and the keys of replays. Does not own which version is replayed
(`provenance_reader`), how long content is kept (`storage.content`), nor the queue.

    hold the content → commit the new FlowFile with the key, durably → put it into the queue

Invariants:

- A key of a single replay is used once: the commit that creates the FlowFile also stores its key.
  A repeated request gets the first FlowFile, even if the process crashed at any step.
- The content is held before the commit, so it is not deleted in between. A refused replay changes
  nothing.
- The last `KEYS_MAX` keys are remembered. Replays of many FlowFiles need none: their commit is in
  the record from which the next step is chosen.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.repository.commit_note import CommitNote
from penstock.flow.repository.repository_changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.provenance.provenance_selection import FlowFileVersion
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.repository.flowfile_repository import FlowFileRepository
    from penstock.storage.content.content_repository import ContentRepository

KEYS_MAX: Final = 1_000
KEY_CHARACTERS_MAX: Final = 100
_STATE: Final = "provenance.replays"
_decoder: Final = msgspec.msgpack.Decoder(dict[str, tuple[int, int]])

_logger = logging.getLogger(__name__)


class Replayed(msgspec.Struct, frozen=True):
    """Result of a replay.

    Attributes:
        flowfile: Id of the new FlowFile.
        parent: Id of the replayed one.
        is_repeated: Whether an earlier request with this key created it.
    """

    flowfile: int
    parent: int
    is_repeated: bool


class FlowFileReplays:
    """Replays FlowFiles.

    The mutex lets one replay run at a time, so that two requests with one key make one FlowFile.

    Args:
        repository: Repository of FlowFiles.
        content: Repository of their content.
        clock: The current time.
        new_uuid: Returns a unique text.

    Attributes:
        count: FlowFiles that were replayed since the start.
        refused: Replays that were refused because the content is no longer kept.
    """

    def __init__(
        self,
        repository: FlowFileRepository,
        content: ContentRepository,
        clock: Clock,
        new_uuid: Callable[[], str],
    ) -> None:
        self._repository = repository
        self._content = content
        self._clock = clock
        self._new_uuid = new_uuid
        self._mutex = threading.Lock()
        self.count = self.refused = 0

    def find(self, key: str) -> Replayed | None:
        """Return the result of the replay with a key; None: there was none."""
        found = self._keys().get(key)
        return None if found is None else Replayed(*found, is_repeated=True)

    def replay(
        self, version: FlowFileVersion, queue: FlowFileQueue, key: str, principal: str = ""
    ) -> Replayed:
        """Put a new FlowFile with the content and attributes of an old one into its queue.

        Args:
            version: The old FlowFile.
            queue: Queue of the connection `version.queue`.
            key: Key of the request, chosen by the client.
            principal: Id of the principal of the request.

        Raises:
            InvalidRequest: The key is empty or too long.
            Conflict: The key was used for another FlowFile, or the content is no longer kept.
            Unavailable: Nothing was changed.
        """
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise InvalidRequest(f"use 1 to {KEY_CHARACTERS_MAX} characters", place="key")
        old = version.flowfile
        with self._mutex:
            known = self.find(key)
            if known is not None:
                if known.parent != old.id:
                    raise Conflict(
                        f"key {key!r} was used to replay FlowFile {known.parent}: use another one"
                    )
                return known
            claim = old.claim
            if claim is not None:
                try:
                    self._content.revive(claim)
                except NotFound as error:  # narrow: nothing was changed
                    self.refused += 1
                    raise Conflict(
                        f"FlowFile {old.id} cannot be replayed: {error}; content is kept for"
                        " --provenance-retention, up to --provenance-retention-size"
                    ) from error
            try:
                flowfile = self._copy(old)
                self._commit(flowfile, version, key, principal)
            except BaseException:
                if claim is not None:
                    self._content.release(claim.resource)
                raise
            self.count += 1
        queue.put_many([flowfile])
        return Replayed(flowfile.id, old.id, is_repeated=False)

    def is_kept(self, version: FlowFileVersion) -> bool:
        """Return whether the file with the content of a FlowFile exists; it may be damaged."""
        claim = version.flowfile.claim
        return claim is None or self._content.is_kept(claim)

    def replay_many(
        self, versions: Sequence[tuple[FlowFileVersion, FlowFileQueue]], principal: str = ""
    ) -> dict[int, int]:
        """Put copies of FlowFiles into their queues, in one commit.

        Args:
            versions: The old FlowFiles with the queues of their connections.
            principal: Id of the principal of the request.

        Returns:
            The id of the new FlowFile for each old one; those whose content is no longer kept, or
            is damaged, are left out.

        Raises:
            Unavailable: Nothing was changed.
        """
        with self._mutex:
            held: list[tuple[FlowFileVersion, FlowFileQueue]] = []
            is_done = False
            try:
                for version, queue in versions:
                    claim = version.flowfile.claim
                    try:
                        if claim is not None:
                            self._content.revive(claim)
                    except NotFound:  # narrow: nothing was changed
                        self.refused += 1
                        continue
                    held.append((version, queue))
                copies = [(version, queue, self._copy(version.flowfile)) for version, queue in held]
                if copies:
                    self._commit_many(copies, principal)
                is_done = True
            finally:
                if not is_done:
                    for version, _ in held:
                        if version.flowfile.claim is not None:
                            self._content.release(version.flowfile.claim.resource)
            self.count += len(copies)
        # They are committed: each enters its queue now, or no queue until the next start.
        puts: dict[FlowFileQueue, list[FlowFile]] = {}
        for _, queue, copy in copies:
            puts.setdefault(queue, []).append(copy)
        steps = CleanupSteps()
        for queue, put in puts.items():
            steps.take(queue.put_many, put)
        steps.finish()
        return {version.flowfile.id: copy.id for version, _, copy in copies}

    def _commit_many(
        self, copies: Sequence[tuple[FlowFileVersion, FlowFileQueue, FlowFile]], principal: str
    ) -> None:
        note = CommitNote(
            time_ms=self._clock.now_ms(), replay=self._new_uuid(), principal=principal
        )
        note.created = [copy.id for _, _, copy in copies]
        note.add_route("", note.created)
        note.links = [(version.flowfile.id, copy.id) for version, _, copy in copies]
        puts: dict[str, list[FlowFile]] = {}
        for version, _, copy in copies:
            puts.setdefault(version.queue, []).append(copy)
        claims = [copy.claim for _, _, copy in copies if copy.claim is not None]
        self._repository.commit(
            # The references of `revive` count as those of writers.
            Changes(puts=puts, written=claims, notes=[note]),
            durable=True,
        )

    def _copy(self, old: FlowFile) -> FlowFile:
        now_ms = self._clock.now_ms()
        return FlowFile(
            self._repository.next_ids(1),
            {**old.attributes, UUID: self._new_uuid()},
            old.size,
            old.claim,
            old.content_offset,
            now_ms,
            old.lineage_start_ms,
            old.lineage_index,
            now_ms,
            self._repository.next_queue_indexes(1),
        )

    def _commit(
        self, flowfile: FlowFile, version: FlowFileVersion, key: str, principal: str
    ) -> None:
        old = version.flowfile
        note = CommitNote(time_ms=flowfile.queued_ms, replay=key, principal=principal)
        note.add_route("", [flowfile.id])
        note.created = [flowfile.id]
        note.links = [(old.id, flowfile.id)]
        keys = {**self._keys(), key: (flowfile.id, old.id)}
        for oldest in list(keys)[: max(0, len(keys) - KEYS_MAX)]:
            del keys[oldest]
        self._repository.commit(
            Changes(
                puts={version.queue: [flowfile]},
                # The reference of `revive` counts as that of a writer.
                written=() if flowfile.claim is None else (flowfile.claim,),
                states={_STATE: msgspec.msgpack.encode(keys)},
                notes=[note],
            ),
            durable=True,
        )

    def _keys(self) -> dict[str, tuple[int, int]]:
        stored = self._repository.state(_STATE)
        return {} if stored is None else _decoder.decode(stored)

"""Appends to FlowFiles within a session: one writer for each, until its claim is finished.

Owns the writers and the length of the valid content. Does not own the streams (`streams`), nor the
FlowFiles (`ledger`).

Invariants: a FlowFile that is appended to repeatedly keeps one writer, and its bytes are not copied
again. If a writer fails, everything that was appended with it is lost, and the session can no
longer be committed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.cleanup import Steps
from penstock.core.errors import PenstockError, Unavailable
from penstock.flow.session.content_streams import stream_pieces
from penstock.flow.session.session_state import named, with_content

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.session.session_state import Ledger
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.content.repository import ContentRepository, ContentWriter

# Each of these FlowFiles keeps a content file open.
_APPENDED_MAX: Final = 8


class Appended:
    """FlowFile that is being appended to.

    Attributes:
        writer: Writer that holds the content so far.
        base: The FlowFile before the first append.
        size: Length of the valid content, in bytes.
    """

    __slots__ = ("base", "size", "writer")

    def __init__(self, writer: ContentWriter, base: FlowFile) -> None:
        self.writer = writer
        self.base = base
        self.size = base.size


class Appending:
    """FlowFiles that a session appends to; for the session's thread only.

    Args:
        content: Repository for the bytes.
        read: Reads the content of a FlowFile.

    Attributes:
        begun: Unfinished appends, by the FlowFile's id.
    """

    def __init__(
        self, content: ContentRepository, read: Callable[[FlowFile], io.BufferedReader]
    ) -> None:
        self._content = content
        self._read = read
        self.begun: dict[int, Appended] = {}
        self._lost: FlowFile | None = None

    def to(self, flowfile: FlowFile, ledger: Ledger) -> Appended:
        """Return the unfinished append of a FlowFile; begin one with its content if there is none.

        Raises:
            ContentMissing: The existing content of the FlowFile is missing.
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
        """
        begun = self.begun.get(flowfile.id)
        if begun is not None:
            return begun
        if len(self.begun) >= _APPENDED_MAX:
            self.finish(next(iter(self.begun)), ledger)
        writer = self._content.write()
        try:
            if flowfile.size and flowfile.claim is not None:
                with self._read(flowfile) as source:
                    for piece in stream_pieces(source):
                        writer.write(piece)
            appended = self.begun[flowfile.id] = Appended(writer, flowfile)
        except BaseException:
            writer.abort()
            raise
        return appended

    def finish(self, number: int, ledger: Ledger) -> None:
        """Finish the claim of an append, and make the FlowFile refer to it.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is as it was before the first append.
        """
        appended = self.begun[number]
        newest = ledger.newest[number]
        base = appended.base
        claim: ContentClaim | None = None
        is_entered = False
        try:
            claim = appended.writer.finish()
            if claim is not None:
                ledger.written.append((number, claim))
                is_entered = True
            ledger.change(with_content(newest, claim, appended.size))
        except BaseException:
            # The failed writer held all appended bytes. They cannot be undone separately, so the
            # session can no longer be committed.
            self._lost = self._lost or base
            appended.writer.abort()
            if claim is not None and not is_entered:
                self._content.release(claim.resource)
            ledger.change(with_content(newest, base.claim, base.size, base.content_offset))
            raise
        finally:
            del self.begun[number]

    def finish_all(self, ledger: Ledger) -> None:
        """Finish all appends; called before a commit.

        Raises:
            Unavailable: Disk full or I/O error, now or earlier.
        """
        if self._lost is not None:
            raise Unavailable(
                f"the bytes appended to {named(self._lost)} could not be written, so the session "
                "is rolled back: free disk space and try again"
            )
        for number in list(self.begun):
            self.finish(number, ledger)

    def give_up(self, number: int, ledger: Ledger) -> None:
        """Close a FlowFile's writer after a failure; bytes appended before are kept."""
        # Bytes written before the failure are beyond the end of the valid content. If the disk
        # failed, the commit reports it.
        with suppress(PenstockError):
            self.finish(number, ledger)

    def abort(self) -> None:
        """Discard all appends; called before a rollback."""
        steps = Steps()
        for appended in self.begun.values():
            steps.take(appended.writer.abort)
        self.begun.clear()
        self._lost = None
        steps.finish()

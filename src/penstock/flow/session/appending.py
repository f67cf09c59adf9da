"""What a session appends to FlowFiles: one writer for each of them, until its claim is whole.

Owns the writers and where the content ends that counts. Does not own the streams (`streams`), nor
the FlowFiles (`ledger`).

Invariant: a FlowFile that is appended to often has one writer, and its bytes are not copied again
each time. A writer that fails takes all that was appended with it: the session is lost.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, Unavailable
from penstock.core.steps import Steps
from penstock.flow.session.ledger import named, with_content
from penstock.flow.session.streams import stream_pieces

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.session.ledger import Ledger
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.content.repository import ContentRepository, ContentWriter

# Each has a file of content to itself.
_APPENDED_MAX: Final = 8


class Appended:
    """What is being appended to.

    Attributes:
        writer: Has the content so far.
        base: The FlowFile as it was before.
        size: Where the content ends that counts, in bytes.
    """

    __slots__ = ("base", "size", "writer")

    def __init__(self, writer: ContentWriter, base: FlowFile) -> None:
        self.writer = writer
        self.base = base
        self.size = base.size


class Appending:
    """The FlowFiles that a session appends to; for the session's thread.

    Args:
        content: Where the bytes are.
        read: Reads what a FlowFile has.

    Attributes:
        begun: What is not finished, by the FlowFile's id.
    """

    def __init__(
        self, content: ContentRepository, read: Callable[[FlowFile], io.BufferedReader]
    ) -> None:
        self._content = content
        self._read = read
        self.begun: dict[int, Appended] = {}
        self._lost: FlowFile | None = None

    def to(self, flowfile: FlowFile, ledger: Ledger) -> Appended:
        """Return what is appended to a FlowFile, begun with its content if it was not.

        Raises:
            ContentMissing: What it adds to is gone.
            Unavailable: Disk full or I/O error; the FlowFile is as before.
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
        """Have a FlowFile point at the claim that has what was appended.

        Raises:
            Unavailable: Disk full or I/O error; it is as it was before anything was appended.
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
            # With the writer went all that was appended, which cannot be undone alone: the session
            # cannot be committed any more.
            self._lost = self._lost or base
            appended.writer.abort()
            if claim is not None and not is_entered:
                self._content.release(claim.resource)
            ledger.change(with_content(newest, base.claim, base.size, base.content_offset))
            raise
        finally:
            del self.begun[number]

    def finish_all(self, ledger: Ledger) -> None:
        """Finish all; before a commit.

        Raises:
            Unavailable: Disk full or I/O error, now or before.
        """
        if self._lost is not None:
            raise Unavailable(
                f"what was appended to {named(self._lost)} could not be written; the session is "
                "rolled back: free space and try again"
            )
        for number in list(self.begun):
            self.finish(number, ledger)

    def give_up(self, number: int, ledger: Ledger) -> None:
        """Take no more into a FlowFile's writer after a failure; what was appended before stays."""
        # What was written before the failure is behind the content's end. If the disk is what
        # failed, the commit says so.
        with suppress(PenstockError):
            self.finish(number, ledger)

    def abort(self) -> None:
        """Give everything up; before a rollback."""
        steps = Steps()
        for appended in self.begun.values():
            steps.take(appended.writer.abort)
        self.begun.clear()
        self._lost = None
        steps.finish()

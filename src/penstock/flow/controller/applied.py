"""The flow that was applied last, and what of it is to run: kept durably.

Owns the file. Does not own the flow that runs (`controller`).

Invariant: the file holds one state after some change, whole: it is replaced atomically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

import msgspec

from penstock.core.errors import CorruptData, NotFound
from penstock.flow.graph.export import document
from penstock.flow.graph.model import Flow
from penstock.flow.graph.places import InvalidFlow
from penstock.flow.graph.yamlreading import read_flow

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem

_FORMAT_NUMBER: Final = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which components are to run.

    Attributes:
        all_running: Whether those run of which nothing else is said, new ones too.
        exceptions: By id of a component: whether it runs.
    """

    all_running: bool = False
    exceptions: Mapping[str, bool] = field(default_factory=dict)

    def runs(self, component_id: str) -> bool:
        """Say whether a component is to run."""
        return self.exceptions.get(component_id, self.all_running)

    def with_one(self, component_id: str, *, running: bool) -> Wanted:
        """Return this with another answer for one component."""
        exceptions = {**self.exceptions, component_id: running}
        if running == self.all_running:
            del exceptions[component_id]
        return replace(self, exceptions=exceptions)

    def only(self, components: frozenset[str]) -> Wanted:
        """Return this without components that are there no more."""
        kept = {one: runs for one, runs in self.exceptions.items() if one in components}
        return replace(self, exceptions=kept)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    revision: int
    all_running: bool
    exceptions: dict[str, bool]
    flow: dict[str, object]


@dataclass(frozen=True, slots=True)
class AppliedFlow:
    """A flow that was applied.

    Attributes:
        flow: The flow.
        revision: Grows by one with each change of the flow; 0: none was applied yet.
        wanted: What is to run.
    """

    flow: Flow
    revision: int = 0
    wanted: Wanted = field(default_factory=Wanted)

    @classmethod
    def load(cls, fs: FileSystem, path: str) -> Self:
        """Read the file; without one the flow is empty.

        Raises:
            CorruptData: It is damaged.
            Unavailable: It cannot be read.
        """
        try:
            data = fs.read_bytes(path)
        except NotFound:
            return cls(Flow(name="flow"))
        try:
            file = msgspec.json.decode(data, type=_File)
            if file.format != _FORMAT_NUMBER:
                raise CorruptData(path, 0, f"format {file.format} is of another Penstock")
            flow = read_flow(msgspec.json.encode(file.flow), path).flow
        except (msgspec.MsgspecError, InvalidFlow) as error:
            raise CorruptData(path, 0, f"{error}: restore it, or remove it and apply") from error
        return cls(flow, file.revision, Wanted(file.all_running, file.exceptions))

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file, durably.

        Raises:
            Unavailable: It cannot be written; the file is as before.
        """
        file = _File(
            _FORMAT_NUMBER,
            self.revision,
            self.wanted.all_running,
            dict(self.wanted.exceptions),
            document(self.flow),
        )
        fs.write_atomically(path, msgspec.json.encode(file))

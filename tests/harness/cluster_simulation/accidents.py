"""Random accidents of whole processes and hosts; single calls fail elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.harness.cluster_simulation.cluster import Cluster
    from tests.harness.cluster_simulation.world import Process

_EVERY_S: Final = 0.05
# A leader's term lasts 6 s, and a worker is lost after 30 s: outages shorter and longer are needed.
_SHORT_S: Final = 4.0
_LONG_S: Final = 50.0


@dataclass(slots=True)
class Accidents:
    """Causes accidents at random moments of virtual time."""

    cluster: Cluster

    def begin(self) -> None:
        """Begin to cause accidents."""
        self.cluster.world.chance.on = True
        self.cluster.world.after(_EVERY_S, self._look)

    def end(self) -> None:
        """Cause no further accidents, and repair lasting ones."""
        cluster, now_s = self.cluster, self.cluster.world.now_s
        cluster.world.note("--- no more accidents ---")
        cluster.world.chance.on = False
        cluster.shared.down_until_s = cluster.topics.down_until_s = 0.0
        cluster.files.full_until_s = 0.0
        for process in cluster.world.processes:
            process.cut_until_s = process.disk_full_until_s = 0.0
            process.stalled_until_s = min(process.stalled_until_s, now_s)

    def _look(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        if not world.chance.on:
            return
        dice, now_s = world.chance.of("accidents"), world.now_s
        long_s = dice.choice([_SHORT_S, 12.0, _LONG_S])
        until_s = now_s + dice.uniform(0.2, long_s)
        if self._happens("overlord dies"):
            for process in self._victim([one.process for one in cluster.overlords], "dies"):
                process.die()
        if self._happens("worker dies"):
            for process in self._victim([one.process for one in cluster.workers], "dies"):
                process.die()
        if self._happens("process stalls"):
            for process in self._victim(self._others(), f"stands still until {until_s:.1f} s"):
                process.stalled_until_s = until_s
        if self._happens("partition"):
            for process in self._of_host(f"is cut off until {until_s:.1f} s"):
                process.cut_until_s = until_s
        if self._happens("clock jumps"):
            skew_ms = dice.randrange(-20_000, 20_000)
            for process in self._of_host(f"has its clock off by {skew_ms} ms"):
                process.skew_ms = skew_ms
        if self._happens("disk full"):
            for process in self._of_host(f"has a full disk until {until_s:.1f} s"):
                process.disk_full_until_s = until_s
        if self._happens("deep storage full"):
            world.note(f"deep storage is full until {until_s:.1f} s")
            cluster.files.full_until_s = until_s
        if self._happens("metadata outage"):
            world.note(f"the metadata is gone until {until_s:.1f} s")
            cluster.shared.down_until_s = until_s
        if self._happens("broker down"):
            world.note(f"the broker is gone until {until_s:.1f} s")
            cluster.topics.down_until_s = until_s
        world.after(_EVERY_S, self._look)

    def _happens(self, kind: str) -> bool:
        chance = self.cluster.world.chance
        # These are checked at few moments only, and a run is short.
        return chance.fault(kind, throws=6)

    def _others(self) -> list[Process]:
        """Return all processes but the database, which has its own outages."""
        return self.cluster.world.processes[1:]

    def _of_host(self, what: str) -> list[Process]:
        """Return all processes of one host."""
        hosts = {process.host for process in self._victim(self._others(), what)}
        return [process for process in self._others() if process.host in hosts]

    def _victim(self, among: list[Process], what: str) -> list[Process]:
        """Return one live process, or none."""
        alive = [process for process in among if process.alive]
        if not alive:
            return []
        process = self.cluster.world.chance.of("victims").choice(alive)
        self.cluster.world.note(f"{process.name} {what}")
        return [process]


__all__ = ["Accidents"]

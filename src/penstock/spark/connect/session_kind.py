"""Kind of the Spark sessions of a process: Spark Connect or a classic master, never both.

PySpark's functions build columns for one kind in the whole process: `pyspark.sql.functions` reads
an environment variable. A session of the other kind would fail, or fail with each job.
"""

from __future__ import annotations

import threading
import weakref

from penstock.core.errors import InvalidRequest


class ProcessSessionKind:
    """Kind of the Spark sessions of this process. Thread-safe.

    A kind is reserved while at least one user of it exists, and fixed once a session was made,
    because Python code may keep columns of it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_connect = False
        self._is_fixed = False
        self._place = ""
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def reserve(self, user: object, place: str, *, is_connect: bool) -> None:
        """Reserve a kind for a user; repeatable.

        Args:
            user: Owner of the session.
            place: Where its Spark is, without secrets.
            is_connect: Whether the kind is Spark Connect.

        Raises:
            InvalidRequest: The process uses the other kind.
        """
        with self._mutex:
            if is_connect != self._is_connect and (self._is_fixed or self._users):
                used = "Spark Connect at" if self._is_connect else "Spark with the master"
                raise InvalidRequest(
                    f"the Spark {place} cannot be used, because this process already uses"
                    f" {used} {self._place}, and PySpark does not support both kinds in one"
                    " process: give all processors of Spark a Connect address (sc://HOST:PORT, or"
                    " none for the service's Spark), or give all of them local[N]; if the flow was"
                    " changed from one kind to the other, restart Penstock"
                )
            if not self._is_fixed and not self._users:
                self._is_connect, self._place = is_connect, place
            self._users.add(user)

    def fix(self) -> None:
        """Fix the reserved kind: a session is made."""
        with self._mutex:
            self._is_fixed = True

    def release(self, user: object) -> None:
        """End a user's reservation, if there is one."""
        with self._mutex:
            self._users.discard(user)


PROCESS_SESSION_KIND = ProcessSessionKind()

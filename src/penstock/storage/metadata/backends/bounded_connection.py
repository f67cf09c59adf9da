"""Connection to PostgreSQL that closes itself when a response takes too long.

Loads psycopg, so it is imported only for PostgreSQL.
"""

from __future__ import annotations

from typing import TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

T = TypeVar("T")

_LOOK_EVERY_S = 0.1


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time; the connection is closed."""


class BoundedConnection(psycopg.Connection[TupleRow]):
    """Closes itself when an answer takes too long.

    Attributes:
        answer_timeout_s: Time limit for one answer; None for no limit.
    """

    answer_timeout_s: float | None = None

    def wait(
        self, gen: PQGen[T], interval: float = _LOOK_EVERY_S, timeout: float | None = None
    ) -> T:
        """Wait for one exchange with the server; the driver calls it for each.

        Raises:
            ServerSilent: It took too long.
        """
        limit_s = self.answer_timeout_s if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit_s)
        except BaseException as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            # It is unknown what the server does with the statement: no other may follow.
            self.pgconn.finish()
            if isinstance(error, psycopg.OperationalError):
                raise ServerSilent(f"no answer within {limit_s} s") from error
            raise

"""Ends what Spark begins of an operation after it was interrupted.

Spark submits the jobs of broadcasts, subqueries and adaptive stages on threads of its own. One that
was about to do so does it after the operation ended, and no interrupt finds that job any more. But
Spark Connect ends all jobs of an operation whenever it fails, and knows them by the operation's id:
so one of the same id that fails before it needs a core ends them.

A server forgets ids at once where `serverconf` tells it to; others refuse an id that they know, and
keep such a job until it is through.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Connected

_NO_TABLE: Final = "`penstock: there is no such table`"


def end_jobs(session: SparkSession, operation: str) -> None:
    """End the jobs that run under the id of an operation that has ended; never raises."""
    if not hasattr(session, "client"):
        return  # a classic session ends jobs by their tag, whenever they began
    # Imported here: it costs a second and 60 MB, which a command that needs no Spark saves.
    from pyspark.sql.connect.plan import Read  # noqa: PLC0415

    client = cast("Connected", session).client
    with contextlib.suppress(Exception):  # it is to fail; Spark may be gone, too
        # Nothing public asks under an id that is given; PySpark's version is pinned.
        request = client._execute_plan_request_with_metadata(operation)  # noqa: SLF001
        request.plan.CopyFrom(Read(_NO_TABLE).to_proto(client))
        for _ in client._execute_and_fetch_as_iterator(request, {}):  # noqa: SLF001
            pass

"""A Spark Connect server for tests, in a folder of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.services.host.host_plan import spark_cache_folder
from penstock.services.options.values import java_options
from penstock.spark.connect.server import SparkServer, SparkServerOptions

# Spark compiles Java for each query. Those of most tests read a few rows, so that the compilation
# is a fifth of what they cost. `make soak`, and the systems that tests start, have it compile.
INTERPRETED = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)


def server_options(folder: Path, memory: str = "1g") -> SparkServerOptions:
    """A server of its own in a folder; the user's class archive is used when there is one."""
    return SparkServerOptions(
        run_folder=folder / "run",
        log_folder=folder / "log",
        temp_folder=folder / "tmp",
        cache_folder=spark_cache_folder(os.environ),
        master="local[2]",
        driver_memory=memory,
        java_options=java_options(os.environ["PENSTOCK_SPARK_JAVA_OPTIONS"]),
        token="secret+/=",
    )


def start_server(folder: Path, memory: str = "1g", *, small_data: bool = False) -> SparkServer:
    environment = {**os.environ, "CANARY_OF_TESTS": "canary-of-the-environment"}
    options = server_options(folder, memory)
    if small_data and environment.get("HYPOTHESIS_PROFILE") != "soak":
        options = replace(options, java_options=(*options.java_options, *INTERPRETED))
    server = SparkServer(options, SystemClock(), environment)
    server.start()
    server.wait_ready(120)
    return server

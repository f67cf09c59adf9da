"""A Spark Connect server for tests, in a folder of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.services.host.host_plan import spark_cache_folder
from penstock.services.options.option_values import java_options
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from tests.kits.ports_kit import kept_port


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


def start_server(folder: Path, memory: str = "1g") -> SparkServer:
    environment = {**os.environ, "CANARY_OF_TESTS": "canary-of-the-environment"}
    # The JVM listens only after seconds, in which others would get a port that is just free.
    with kept_port() as port:
        options = replace(server_options(folder, memory), port=port)
        server = SparkServer(options, SystemClock(), environment)
        server.start()
        server.wait_ready(240)
    return server

"""An S3 server of this process, with a bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


def s3_environment(port: int) -> dict[str, str]:
    """Return the variables by which fsspec finds the S3 at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextlib.contextmanager
def s3_bucket(name: str, port: int = 0) -> Iterator[str]:
    """Serve a new bucket, which fsspec finds through the environment, as a user would have it.

    Args:
        name: One that no other test uses: all servers of moto in a process share their content.
        port: A `kept_port`, if any.

    Yields:
        The bucket's address, such as `s3://lake`.
    """
    # Here, because every process of a test run would load them to find the tests.
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in s3_environment(port).items():
                patch.setenv(variable, value)
            s3fs.S3FileSystem().mkdir(name)
            yield f"s3://{name}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()

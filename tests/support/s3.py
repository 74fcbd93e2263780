"""A local S3: moto's server, and the environment in which clients find it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import fsspec
from moto.server import ThreadedMotoServer

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Start an S3 for the block; return its address."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_environment(address: str) -> dict[str, str]:
    """Return the variables of a client of the server at `address`, and of no other."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
        **dict.fromkeys(KEYS, "test"),
    }


@contextlib.contextmanager
def s3_client(address: str) -> Iterator[None]:
    """Set the environment of a client, and forget file systems made in another one."""
    before = {name: os.environ.get(name) for name in s3_environment(address)}
    os.environ.update(s3_environment(address))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        fsspec.get_filesystem_class("s3").clear_instance_cache()

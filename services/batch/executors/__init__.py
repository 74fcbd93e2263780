"""Who scores the chunks: this process's threads, or others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bundle.errors import ErrorCode, MlctlError

if TYPE_CHECKING:
    from services.batch.job import MakeExecutor


def choose_executor(
    name: str, threads: int | None, ray_address: str | None, ray_actors: int | None
) -> MakeExecutor:
    """The executor `name`, "local" or "ray"; INVALID_INPUT for options of the other one."""
    from services.batch.job import local_executor

    if name == "local":
        if ray_address is not None or ray_actors is not None:
            raise MlctlError(
                ErrorCode.INVALID_INPUT, "--ray-address and --ray-actors need --executor ray"
            )
        return local_executor(threads)
    if threads is not None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            "--threads is of --executor local: an actor of Ray scores with one thread",
            "--ray-actors says how many of them there are.",
        )
    from services.batch.executors.cluster import ray_executor

    return ray_executor(ray_address, ray_actors)

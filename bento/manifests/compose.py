"""One server on one machine, for Docker Compose and what reads its files. Pure."""

from __future__ import annotations

from bento.containers.containerfile import GRPC_PORT, HTTP_PORT, USER
from bento.manifests.plan import TOKEN_FOLDER, TOKEN_KEY, ManifestPlan
from bento.manifests.pod import Json

_PROBE = (
    "import urllib.request; "
    f"urllib.request.urlopen('http://127.0.0.1:{HTTP_PORT}/readyz', timeout=2)"
)
# Compose interpolates dollars; two are one.
_DOLLAR = ("$", "$$")


def files(plan: ManifestPlan) -> dict[str, list[Json]]:
    """A Compose file; the tokens, if asked for, are in the file ./tokens beside it."""
    server: Json = {
        "image": plan.image,
        "user": f"{USER}:{USER}",
        "init": True,
        "read_only": True,
        "tmpfs": [f"/tmp:mode=1777,size={plan.resources.scratch_mib}m"],  # noqa: S108 - in the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        # Of this machine only: a proxy is where others come in.
        "ports": [f"127.0.0.1:{port}:{port}" for port in (HTTP_PORT, GRPC_PORT)],
        "environment": {name: value.replace(*_DOLLAR) for name, value in plan.environment.items()},
        "healthcheck": {
            "test": ["CMD", "python", "-c", _PROBE],
            "interval": "10s",
            "timeout": "3s",
            "retries": 3,
            "start_period": f"{plan.resources.start_seconds}s",
        },
        "stop_grace_period": f"{plan.drain_seconds}s",
        "restart": "unless-stopped",
        "labels": {"mlctl.bento": plan.model.tag, "mlctl.digest": plan.model.digest},
        "deploy": {"resources": _resources(plan)},
    }
    document: Json = {"services": {plan.name: server}}
    if plan.token_secret is not None:
        server["secrets"] = [{"source": TOKEN_KEY, "target": f"{TOKEN_FOLDER}/{TOKEN_KEY}"}]
        document["secrets"] = {TOKEN_KEY: {"file": f"./{TOKEN_KEY}"}}
    return {"compose.yaml": [document]}


def _resources(plan: ManifestPlan) -> Json:
    needs = plan.resources
    found: Json = {
        "limits": {"memory": f"{needs.memory_mib}M"},
        "reservations": {"cpus": f"{needs.cpu_millis / 1000:g}"},
    }
    if needs.gpus:
        device = {"driver": "nvidia", "count": needs.gpus, "capabilities": ["gpu"]}
        found["reservations"]["devices"] = [device]
    return found

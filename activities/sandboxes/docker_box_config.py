"""The engine's create request of a box, and the files of its own that are mounted over its pod's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from activities.sandboxes.base import PIDS_LIMIT, BoxSpec
from activities.sandboxes.docker_keepalive import keepalive_command, service_of
from activities.sandboxes.docker_labels import labels_of
from activities.sandboxes.docker_pod import HOSTNAME, SMALL_LOG, host_resolvers

NANO_CPUS = 1_000_000_000
MB = 1024 * 1024
HOSTS = f"127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def box_config(
    spec: BoxSpec, pod_id: str, image: Mapping[str, Any], own_files: Path, *, can_limit_storage: bool
) -> dict[str, Any]:
    """`image` is the engine's record of `spec.image`, `own_files` what `write_own_files` made."""
    service = service_of(image["Config"].get("Entrypoint"))
    config: dict[str, Any] = {
        "Image": spec.image.handle,
        "Entrypoint": keepalive_command(spec.lifetime_sec, service),
        "Cmd": [],
        "Env": [f"{key}={value}" for key, value in spec.env.items()],
        "Labels": labels_of(spec.tag, "box"),
        "OpenStdin": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_limits(spec, can_limit_storage),
            "NetworkMode": f"container:{pod_id}",
            "Init": True,
            "CapDrop": ["NET_RAW"],
            "PidsLimit": PIDS_LIMIT,
            "LogConfig": SMALL_LOG,
            "Mounts": _mounts(spec, own_files),
        },
    }
    if spec.workdir:
        config["WorkingDir"] = spec.workdir
    if not service:
        config["User"] = "0:0"
    return config


def _limits(spec: BoxSpec, can_limit_storage: bool) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if spec.cpus is not None:
        limits["NanoCpus"] = round(spec.cpus * NANO_CPUS)
    if spec.memory_mb is not None:
        limits["Memory"] = limits["MemorySwap"] = spec.memory_mb * MB
    if spec.storage_mb is not None and can_limit_storage:
        limits["StorageOpt"] = {"size": f"{spec.storage_mb}m"}
    return limits


def _mounts(spec: BoxSpec, own_files: Path) -> list[dict[str, Any]]:
    own = [
        {"Type": "bind", "Source": str(own_files / name), "Target": f"/etc/{name}"} for name in _own_files()
    ]
    given = [
        {"Type": "bind", "Source": str(each.source), "Target": each.target, "ReadOnly": True}
        for each in spec.mounts
    ]
    return own + given


def _own_files() -> dict[str, str]:
    resolvers = "".join(f"nameserver {each}\n" for each in host_resolvers())
    return {"hosts": HOSTS, "resolv.conf": resolvers, "hostname": f"{HOSTNAME}\n"}


def write_own_files(folder: Path) -> None:
    """The box's hosts, resolv.conf and hostname. It may change them; else it would change its pod's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _own_files().items():
        if not (folder / name).exists():
            (folder / name).write_text(content)
            (folder / name).chmod(0o644)


def remove_own_files(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)

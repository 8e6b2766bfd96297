"""An unpacked corpus read into parsed tasks. Blocking; run in a thread."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from activities.archives import tree_files
from domain.dataset_layout import DatasetLayout, TaskDirectory, find_tasks
from domain.digests import task_content_digest
from domain.errors import TaskError
from domain.manifests import LocalTask, Manifest, check_dataset_files, match_manifest, read_manifest
from domain.providers import ProviderCapabilities
from domain.script_needs import refuse_index_needs
from domain.support import refuse_unrunnable
from domain.tasks import Task, TaskFiles, parse_task
from domain.vocabulary import SandboxProvider

ENVIRONMENT = "environment/"
MAX_SCRIPT_BYTES = 1024 * 1024

Capabilities = Mapping[SandboxProvider, ProviderCapabilities]


@dataclass(frozen=True)
class ReadTask:
    """One task directory: parsed, or `refusal` says why it is not."""

    name: str
    directory: Path
    digest: str
    image_digest: str
    task: Task | None
    refusal: TaskError | None = None


@dataclass(frozen=True)
class Corpus:
    """A whole dataset directory."""

    tasks: list[ReadTask]
    manifest: Manifest | None = None
    unlisted: list[str] = field(default_factory=list[str])


def read_corpus(root: Path, root_name: str, capabilities: Capabilities) -> Corpus:
    """Parse every task. Raises `TaskError` for what refuses the corpus as a whole (contract 6.7)."""
    files = tree_files(root)
    layout = find_tasks(list(files), root_name)
    tasks = [_read_task(root / each.prefix, each, files, capabilities) for each in layout.tasks]
    manifest = read_manifest(files[layout.manifest_path].read_bytes()) if layout.manifest_path else None
    _check_files(manifest, layout, files)
    if manifest is None:
        return Corpus(tasks)
    listed = set(match_manifest(manifest, [_local(task) for task in tasks]))
    chosen = [task for task in tasks if task.name in listed]
    return Corpus(chosen, manifest, [task.name for task in tasks if task.name not in listed])


def _read_task(
    path: Path, directory: TaskDirectory, files: dict[str, Path], capabilities: Capabilities
) -> ReadTask:
    own = {path: files[f"{directory.prefix}{path}"] for path in directory.own_paths(files)}
    digests = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in own.items()}
    gitignore = own[".gitignore"].read_text(errors="replace") if ".gitignore" in own else None
    task, refusal = None, None
    try:
        task = _parse(directory.name, own)
        refuse_unrunnable(task, capabilities)
    except TaskError as error:
        refusal = error
    return ReadTask(
        name=directory.name,
        directory=path,
        digest=task_content_digest(digests, gitignore),
        image_digest=_image_digest(own, digests, task),
        task=task,
        refusal=refusal,
    )


def _parse(name: str, own: dict[str, Path]) -> Task:
    known = TaskFiles.of(own.keys(), lambda path: own[path].read_bytes())
    task = parse_task(name, own["task.toml"].read_bytes(), known)
    refuse_index_needs(
        task, {path: file.read_bytes() for path, file in own.items() if _is_script(path, file)}
    )
    return task


def _is_script(path: str, file: Path) -> bool:
    """Whether it may be run by a verifier: what is larger is data."""
    is_test = path.startswith("tests/") or (path.startswith("steps/") and "/tests/" in path)
    return is_test and file.stat().st_size <= MAX_SCRIPT_BYTES


def _image_digest(own: dict[str, Path], digests: dict[str, str], task: Task | None) -> str:
    """What an image is built once per: names, modes and bytes of `environment/`, and a pinned image."""
    outer = hashlib.sha256(f"{task.docker_image if task else None}\n".encode())
    for path in sorted(digests):
        if path.startswith(ENVIRONMENT):
            is_executable = bool(own[path].stat().st_mode & 0o111)
            outer.update(f"{path}\0{int(is_executable)}\0{digests[path]}\n".encode())
    return f"sha256:{outer.hexdigest()}"


def _check_files(manifest: Manifest | None, layout: DatasetLayout, files: dict[str, Path]) -> None:
    prefix = layout.files_prefix
    beside = {
        path.removeprefix(prefix): file
        for path, file in files.items()
        if path.startswith(prefix) and "/" not in path.removeprefix(prefix)
    }
    asked = {entry.path for entry in manifest.files if entry.digest} if manifest else set[str]()
    digests = {
        name: f"sha256:{hashlib.sha256(beside[name].read_bytes()).hexdigest()}"
        for name in asked & set(beside)
    }
    check_dataset_files(manifest, list(beside), digests)


def _local(task: ReadTask) -> LocalTask:
    declared = task.task.declared_name if task.task else None
    return LocalTask(name=task.name, declared_name=declared, digest=task.digest)

"""`dataset.toml`: which tasks of a corpus are imported, each pinned to its content digest (contract 6.7)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from domain.errors import TaskError
from domain.task_config import validation_sentence

__all__ = ["LocalTask", "Manifest", "check_dataset_files", "match_manifest", "read_manifest"]

METRIC_SCRIPT = "metric.py"

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
PackageName = Annotated[str, StringConstraints(pattern=rf"^{_PART}/{_PART}$")]


class _Closed(BaseModel):
    """A table that takes no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _without_dots(name: str) -> str:
    if ".." in name:
        raise ValueError(f"{name!r} must not contain '..'")
    return name


class ManifestAuthor(_Closed):
    name: NonEmpty
    email: str | None = None


class ManifestDataset(_Closed):
    """`[dataset]`."""

    name: PackageName
    version: NonEmpty | None = None
    description: str = ""
    authors: tuple[ManifestAuthor, ...] = ()
    keywords: tuple[str, ...] = ()

    _dots = field_validator("name")(_without_dots)


class ManifestTask(BaseModel):
    """One `[[tasks]]` reference."""

    model_config = ConfigDict(frozen=True)

    name: PackageName
    digest: Digest

    _dots = field_validator("name")(_without_dots)

    @property
    def short_name(self) -> str:
        return self.name.split("/", 1)[1]


class ManifestFile(BaseModel):
    """One `[[files]]` entry: a plain file beside the manifest; an empty digest skips its check."""

    model_config = ConfigDict(frozen=True)

    path: NonEmpty
    digest: Digest | None = None

    @field_validator("path")
    @classmethod
    def _simple(cls, value: str) -> str:
        if "/" in value or "\\" in value or value in (".", ".."):
            raise ValueError(f"{value!r} must be a simple file name")
        return value

    @field_validator("digest", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value


class Manifest(_Closed):
    """A valid `dataset.toml`."""

    schema_version: str = "1.0"
    dataset: ManifestDataset
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    tasks: Annotated[tuple[ManifestTask, ...], Field(min_length=1)]
    files: tuple[ManifestFile, ...] = ()

    @property
    def short_name(self) -> str:
        """The catalog name that the manifest proposes."""
        return self.dataset.name.split("/", 1)[1]


class LocalTask(BaseModel):
    """A task of the corpus as matching needs it."""

    model_config = ConfigDict(frozen=True)

    name: str
    declared_name: str | None
    digest: str


def read_manifest(text: str | bytes) -> Manifest:
    """The typed manifest. Raises `TaskError` (code `import_failed`) naming each field at fault."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        return Manifest.model_validate(tomllib.loads(decoded.removeprefix("\ufeff")))
    except UnicodeDecodeError as error:
        raise TaskError(f"dataset.toml: not UTF-8 (byte {error.start})", code="import_failed") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"dataset.toml: not TOML: {error}", code="import_failed") from None
    except ValidationError as error:
        raise TaskError(f"dataset.toml: {validation_sentence(error)}", code="import_failed") from None


def match_manifest(manifest: Manifest, tasks: Sequence[LocalTask]) -> list[str]:
    """Names of the task directories to import, sorted.

    Raises `TaskError` with code `manifest_task_missing`, `manifest_digest_mismatch`, or `import_failed`
    for an ambiguous name or one directory under two digests.
    """
    chosen: dict[str, ManifestTask] = {}
    for reference in dict.fromkeys(manifest.tasks):
        task = _match(reference, tasks)
        earlier = chosen.setdefault(task.name, reference)
        if earlier.digest != reference.digest:
            raise TaskError(
                f"dataset.toml: {earlier.name} and {reference.name} name the directory {task.name} "
                "under two digests",
                code="import_failed",
            )
        if task.digest != reference.digest:
            raise TaskError(
                f"dataset.toml: {reference.name} is pinned to {reference.digest}, "
                f"but the directory {task.name} is {task.digest}",
                code="manifest_digest_mismatch",
            )
    return sorted(chosen)


def _match(reference: ManifestTask, tasks: Sequence[LocalTask]) -> LocalTask:
    """By `[task].name`, then by the short name as a directory."""
    declared = [task for task in tasks if task.declared_name == reference.name]
    if len(declared) > 1:
        places = ", ".join(task.name for task in declared)
        raise TaskError(f"dataset.toml: {reference.name} is declared by {places}", code="import_failed")
    found = declared or [task for task in tasks if task.name == reference.short_name]
    if not found:
        raise TaskError(
            f"dataset.toml: {reference.name} is listed, but no task declares that name and no directory "
            f"is named {reference.short_name}",
            code="manifest_task_missing",
        )
    return found[0]


def check_dataset_files(
    manifest: Manifest | None, beside: Collection[str], digests: Mapping[str, str]
) -> None:
    """Refuse a custom metric, a listed file that is absent, and one whose digest differs.

    `beside` names the plain files beside the manifest (or the tasks); `digests` holds those asked for.
    Raises `TaskError` with code `custom_metric_not_supported`, `manifest_digest_mismatch` or
    `import_failed`.
    """
    listed = manifest.files if manifest else ()
    if METRIC_SCRIPT in beside or any(entry.path == METRIC_SCRIPT for entry in listed):
        raise TaskError(
            f"{METRIC_SCRIPT}: custom dataset metrics are not supported", code="custom_metric_not_supported"
        )
    for entry in listed:
        if entry.path not in beside:
            raise TaskError(f"dataset.toml: the file {entry.path} is listed but absent", code="import_failed")
        if entry.digest is not None and digests.get(entry.path) != entry.digest:
            raise TaskError(
                f"dataset.toml: the file {entry.path} is pinned to {entry.digest}, "
                f"but it is {digests.get(entry.path)}",
                code="manifest_digest_mismatch",
            )

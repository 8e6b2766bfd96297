"""What an agent's box hands on: gathered when the agent is over, kept with the trial, judged again later."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from activities.artifact_tar import ArtifactTar, is_excluded
from activities.capture import ARTIFACTS_DIR, Capture
from activities.kept_trees import spool
from activities.sandboxes.base import Box
from activities.trial_context import Hands, TrialContext
from domain.errors import EvolveError
from domain.task_config import ArtifactConfig
from domain.verifier_inputs import VerifierInputs
from domain.verifier_place import verifier_place

ARTIFACTS_MAX_BYTES = 512 * 1024 * 1024
"""Of all artifacts of a trial together: they pass through this worker's memory."""


class ArtifactsTooLarge(EvolveError):
    """More than is carried into a verifier: the trial has no score."""

    code = "artifacts_too_large"


@dataclass(frozen=True)
class Handed:
    """What was gathered. `left_out` tells in sentences what was not carried."""

    inputs: VerifierInputs
    left_out: list[str]


async def gather(hands: Hands, context: TrialContext, box: Box, provider: str, capture: Capture) -> Handed:
    """Gather, keep under `artifacts/` and store as one tar. Raises `ArtifactsTooLarge` and what boxes do."""
    with tempfile.TemporaryDirectory(prefix="evolve-artifacts-") as scratch:
        gathering = _Gathering(Path(scratch), capture)
        for artifact in _wanted(context.task.artifacts, box.workdir):
            await gathering.add(box, artifact)
        await asyncio.to_thread(gathering.tar.close)
        await capture.keep("artifacts/manifest.json", json.dumps(gathering.manifest, indent=2).encode())
        inputs = await _store(hands, context, gathering, provider)
    return Handed(inputs, gathering.tar.left_out)


def _wanted(declared: Sequence[ArtifactConfig], workdir: str) -> list[ArtifactConfig]:
    """Absolute and plain; first what any task may hand on without declaring it."""
    sources = [str(PurePosixPath(workdir) / artifact.source) for artifact in declared]
    plain = [a.model_copy(update={"source": source}) for a, source in zip(declared, sources, strict=True)]
    if any(PurePosixPath(ARTIFACTS_DIR).is_relative_to(source) for source in sources):
        return plain
    return [ArtifactConfig(source=ARTIFACTS_DIR), *plain]


class _Gathering:
    """One source after another, each on disk while it is read."""

    def __init__(self, scratch: Path, capture: Capture) -> None:
        self.whole, self._part = scratch / "whole.tar", scratch / "part.tar"
        self.tar = ArtifactTar(self.whole)
        self.folders: list[str] = []
        self.manifest: list[dict[str, Any]] = []
        self._capture = capture
        self._left_bytes = ARTIFACTS_MAX_BYTES

    async def add(self, box: Box, artifact: ArtifactConfig) -> None:
        """Gather one source; one that is not there is told in the manifest, and no error."""
        target = f"artifacts/{artifact.destination or artifact.source.lstrip('/')}"
        entry: dict[str, Any] = {
            "source": artifact.source,
            "destination": target,
            "type": "file" if PurePosixPath(artifact.source).suffix else "directory",
            "status": "empty" if artifact.source == ARTIFACTS_DIR else "failed",
            "service": artifact.service,
            "exclude": list(artifact.exclude),
        }
        self.manifest.append(entry)
        try:
            is_cut = await spool(box.get_tar(artifact.source), self._part, self._left_bytes)
        except FileNotFoundError:
            return
        if is_cut:
            raise ArtifactsTooLarge(
                f"the artifacts are larger than {ARTIFACTS_MAX_BYTES} bytes, of which {artifact.source}"
            )
        self._left_bytes -= self._part.stat().st_size
        found = await asyncio.to_thread(self.tar.add, self._part, artifact.source, artifact.exclude)
        if found is None:
            return
        entry.update(type=found, status="ok")
        if found == "directory":
            self.folders.append(artifact.source)
        kept = self._capture.archive(
            self._part, target, lambda name: not is_excluded(name, artifact.exclude), is_cut=False
        )
        async for _ in kept:
            pass


async def _store(hands: Hands, context: TrialContext, gathering: _Gathering, provider: str) -> VerifierInputs:
    attempt = context.attempt
    digest = await asyncio.to_thread(_sha256, gathering.whole)
    key = f"trials/{attempt.trial_id}/{attempt.attempt_number}/inputs-{digest}.tar"
    await hands.blobs.put_file(key, gathering.whole)
    return VerifierInputs(
        attempt_number=attempt.attempt_number,
        artifacts_key=key,
        artifacts_sha256=digest,
        artifacts_bytes=gathering.whole.stat().st_size,
        folders=tuple(gathering.folders),
        package_key=context.stored.package_key,
        package_sha256=context.stored.package_sha256,
        network=verifier_place(context.task).network,
        provider=provider,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# $@ are folders: what the agent deleted there must not come back from the verifier's own image.
EMPTY_FOLDERS = """
for folder; do
  case $folder in /bin|/lib|/lib64|/sbin|/usr|/usr/*) continue ;; esac
  [ -d "$folder" ] && rm -rf -- "$folder"/..?* "$folder"/.[!.]* "$folder"/*
done
exit 0
"""


async def lay_artifacts(hands: Hands, box: Box, inputs: VerifierInputs) -> None:
    """Put what was gathered where it stood, in a box that its tests have not been started in."""
    if inputs.folders:
        await box.run(["sh", "-c", EMPTY_FOLDERS, "empty", *inputs.folders], timeout_sec=120)
    await box.put_tar("/", await hands.blobs.get(inputs.artifacts_key))

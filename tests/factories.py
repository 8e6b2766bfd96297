"""Small makers of test input."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from uuid import uuid4

from domain.vocabulary import DatasetVersionState, ImportStatus
from store.accounts import User, ensure_owner
from store.blobs import Blobs
from store.database import Database, now
from store.datasets import Dataset, DatasetImport, DatasetVersion

TASK_TOML = """\
schema_version = "1.3"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
network_mode = "no-network"
"""


def task_files(name: str, *, solve: str = "solve\n", test: str = "", toml: str = TASK_TOML) -> dict[str, str]:
    """A task whose words the fast provider acts (see tests/providers/fast.py): solved is 1, else 0."""
    return {
        f"{name}/task.toml": toml,
        f"{name}/instruction.md": f"Solve {name}.\n",
        f"{name}/environment/Dockerfile": "FROM scratch\n",
        f"{name}/solution/solve.sh": solve,
        f"{name}/tests/test.sh": test or "reward 0\nreward-if-solved 1\nprint tested\n",
    }


def tar_gz(files: Mapping[str, str]) -> bytes:
    """A tar.gz as the client packs one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in sorted(files.items()):
            data = content.encode()
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755 if path.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def make_owner(db: Database) -> User:
    """The installation's first user."""
    async with db.session() as session:
        return await ensure_owner(session)


async def make_import(db: Database, blobs: Blobs, name: str, files: Mapping[str, str]) -> str:
    """A received dataset, ready for `DatasetImportWorkflow`; returns the import's id."""
    owner = await make_owner(db)
    dataset_id, version_id, import_id = (str(uuid4()) for _ in range(3))
    key, at = f"packages/{import_id}.tar.gz", now()
    await blobs.put(key, tar_gz(files))
    async with db.session() as session:
        session.add(
            Dataset(
                id=dataset_id, name=name, org_id=owner.default_org_id, owner_user_id=owner.id,
                created_at=at, updated_at=at,
            )
        )  # fmt: skip
        await session.flush()
        session.add(
            DatasetVersion(
                id=version_id, dataset_id=dataset_id, version="1",
                state=DatasetVersionState.IMPORTING.value, package_key=key, created_at=at,
            )
        )  # fmt: skip
        session.add(
            DatasetImport(
                id=import_id, owner_user_id=owner.id, org_id=owner.default_org_id, dataset_name=name,
                version="1", version_id=version_id, status=ImportStatus.QUEUED.value, warnings=[],
                archive_key=key, created_at=at, updated_at=at,
            )
        )  # fmt: skip
    return import_id


STEPS_TOML = """
[[steps]]
name = "one"
[[steps]]
name = "two"
"""
SCORED = "reward 0\nreward-if-solved 1\nprint tested\n"


def step_files(name: str = "alpha", *, toml: str = STEPS_TOML, **files: str) -> dict[str, str]:
    """Two steps that the oracle solves. `files` by path, `/` written as `__`; `.sh` files by their stem."""
    task = {
        "task.toml": TASK_TOML.replace("[agent]", "[agent]", 1) + toml,
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": SCORED,
        "tests/shared.txt": "",
        "solution/solve.sh": "solve\n",
        "steps/one/instruction.md": "First.\n",
        "steps/two/instruction.md": "Second.\n",
        **{path.replace("__", "/"): text for path, text in files.items()},
    }
    return {f"{name}/{path}": text for path, text in task.items()}

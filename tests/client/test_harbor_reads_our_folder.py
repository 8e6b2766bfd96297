"""A peer judges our download: Harbor's own models read the job folder, and count what we counted."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.archive import Archives
from activities.bundles import Bundles
from activities.npm_registry import NpmRegistry
from activities.packages import TaskPackages
from activities.settings import WorkerSettings
from activities.signatures import ArchiveRef
from activities.trial_context import Hands
from domain.providers import PROVIDERS
from store import archives, record
from store.blobs import Blobs
from store.database import Database
from store.server_secret import ServerSecret
from tests.client.harbor_peer import ask_harbor
from tests.finished_jobs import DIGEST, accept, finished_job, publish


@pytest.fixture(scope="session")
def harbor() -> Callable[[Path], dict[str, Any]]:
    """Reads a job folder with Harbor."""
    return partial(ask_harbor, "harbor_reads_our_folder.py")


async def download(db: Database, blobs: Blobs, home: Path, job_id: str) -> Path:
    """The job's archive, built and unpacked; returns its one folder."""
    settings = WorkerSettings(database_url=db.url, blob_url=f"file://{home}/blobs", home=home)
    hands = Hands(
        settings,
        db,
        blobs,
        "i",
        {},
        "local",
        PROVIDERS,
        TaskPackages(home / "tasks", blobs),
        Bundles(home / "bundles", NpmRegistry()),
        ServerSecret("a secret for tests, long enough to be one"),
    )
    await ActivityEnvironment().run(Archives(hands).build, ArchiveRef(kind="job", subject_id=job_id))
    row = await archives.read_archive(db, "job", job_id)
    with tarfile.open(fileobj=io.BytesIO(await blobs.get(row["blob_key"]))) as tar:
        tar.extractall(home / "downloaded", filter="data")
    return home / "downloaded" / f"job-{job_id}"


async def test_harbor_reads_what_ran_and_counts_the_same(
    harbor: Callable[[Path], dict[str, Any]], db: Database, blobs: Blobs, tmp_path: Path
) -> None:
    job_id = await finished_job(db, blobs)
    seen = harbor(await download(db, blobs, tmp_path, job_id))
    assert seen["id"] == job_id
    assert (seen["datasets"], seen["agents"]) == ([["demo", "1.0"]], ["oracle"])
    assert seen["pass_at_k"] == {"oracle__demo": {"2": 1.0}}
    assert seen["written"] == seen["counted"]
    rewards = sorted((trial["task"], str(trial["rewards"])) for trial in seen["trials"])
    assert rewards == [
        ("alpha", "{'reward': 0.0}"),
        ("alpha", "{'reward': 1.0}"),
        ("beta mit Umläuten", "None"),
        ("beta mit Umläuten", "{'reward': 1.0}"),
    ]
    for trial in seen["trials"]:
        assert trial["has_log"]
        assert trial["digest"] == DIGEST
        assert trial["environment"] == "docker"
        assert trial["verifier_output"] == "größer\n"
        assert trial["artifacts"] == ["/app/report.txt"]
        assert trial["has_exception_file"] is bool(trial["exceptions"])
        assert trial["reward_valid"] is (trial["rewards"] is not None)


async def test_harbor_reads_a_cancelled_job_on_local(
    harbor: Callable[[Path], dict[str, Any]], db: Database, blobs: Blobs, tmp_path: Path
) -> None:
    await publish(db, "alpha")
    job_id = await accept(db, sandbox_provider="local", agents=[{"name": "oracle"}, {"name": "nop"}])
    async with db.transaction() as connection:
        await record.cancel_job(connection, job_id)
    await record.finish_job(db, job_id)
    seen = harbor(await download(db, blobs, tmp_path, job_id))
    assert seen["written"] == seen["counted"]
    assert seen["written"]["n_cancelled_trials"] == 2
    assert [trial["exceptions"] for trial in seen["trials"]] == [["CancelledError"]] * 2
    assert [trial["environment"] for trial in seen["trials"]] == [None, None]

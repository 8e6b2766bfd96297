"""A real job's download, from the intent's workflow to the packed bytes."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile

import pytest
from temporalio.client import WorkflowFailureError

from store import archives
from tests.factories import task_files
from tests.inprocess import Platform
from workflows import names


async def build(platform: Platform, kind: str, subject_id: str) -> None:
    """As the API's outbox does: by name, with JSON."""
    handle = await platform.client.start_workflow(
        names.ARCHIVE_WORKFLOW,
        {"kind": kind, "subject_id": subject_id},
        id=names.archive_workflow_id(kind, subject_id),
        task_queue=platform.queue,
    )
    await asyncio.wait_for(handle.result(), 60)


async def test_a_job_that_ran_downloads_with_what_its_processes_left(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}, {"name": "nop"}]}
    job = await platform.client.execute_workflow(
        names.JOB_WORKFLOW, body, id="job-to-download", task_queue=platform.queue
    )
    await build(platform, "job", job["job_id"])
    row = await archives.read_archive(platform.db, "job", job["job_id"])
    with tarfile.open(fileobj=io.BytesIO(await platform.blobs.get(row["blob_key"]))) as tar:
        contents = ((entry.name.split("/", 1)[1], tar.extractfile(entry)) for entry in tar)
        files = {name: content.read() for name, content in contents if content is not None}
    stats = json.loads(files["result.json"])["stats"]
    assert {key: entry["metrics"] for key, entry in stats["evals"].items()} == {
        "oracle__demo": [{"mean": 1.0}],
        "nop__demo": [{"mean": 0.0}],
    }
    outputs = [content for name, content in files.items() if name.endswith("/verifier/test-stdout.txt")]
    assert outputs == [b"tested\n", b"tested\n"]
    assert files["job.log"].splitlines()[-1].split()[1] == b"job.completed"


async def test_a_download_of_nothing_fails_and_says_so(platform: Platform) -> None:
    with pytest.raises(WorkflowFailureError):
        await build(platform, "job", "gone")
    assert (await archives.read_archive(platform.db, "job", "gone"))["state"] == "failed"

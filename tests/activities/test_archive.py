"""Downloads are built from a real store: whole, deterministic, checked, anew when their subject changed."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Literal

import pytest
from temporalio.testing import ActivityEnvironment

from activities.archive import Archives
from activities.bundles import Bundles
from activities.npm_registry import NpmRegistry
from activities.packages import TaskPackages
from activities.settings import WorkerSettings
from activities.signatures import ArchiveRef
from activities.trial_context import Hands
from domain.errors import EvolveError
from domain.providers import PROVIDERS
from domain.trials import trial_name
from store import archives, job_reads, record
from store.accounts import caller_of_owner
from store.blobs import Blobs
from store.database import Database
from store.server_secret import ServerSecret
from tests.finished_jobs import FILES, accept, finished_job, keep, publish, run_trial, trial_ids

Kind = Literal["job", "trial"]


class Builder:
    """Runs the activity as a worker does, and reads what it stored."""

    def __init__(self, db: Database, blobs: Blobs, home: Path) -> None:
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
        self.db, self.blobs = db, blobs
        self._archives = Archives(hands)

    async def build(self, kind: Kind, subject_id: str) -> Any:
        """The archive's row after a build."""
        ref = ArchiveRef(kind=kind, subject_id=subject_id)
        await ActivityEnvironment().run(self._archives.build, ref)
        return await archives.read_archive(self.db, kind, subject_id)

    async def files(self, kind: Kind, subject_id: str) -> dict[str, bytes]:
        """Build, check length and digest, and unpack."""
        row = await self.build(kind, subject_id)
        data = await self.blobs.get(row["blob_key"])
        assert (len(data), hashlib.sha256(data).hexdigest()) == (row["size_bytes"], row["sha256"])
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = ((entry.name, tar.extractfile(entry)) for entry in tar)
            return {name: content.read() for name, content in found if content is not None}


@pytest.fixture
def builder(db: Database, blobs: Blobs, tmp_path: Path) -> Builder:
    return Builder(db, blobs, tmp_path)


async def test_a_jobs_download_is_one_folder_with_its_records_and_a_folder_for_each_trial(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    job_id = await finished_job(db, blobs)
    ids = await trial_ids(db, job_id)
    files = await builder.files("job", job_id)
    root = f"job-{job_id}"
    assert {name.split("/")[0] for name in files} == {root}
    names = [
        trial_name(task, trial_id)
        for task, trial_id in zip(["alpha"] * 2 + ["beta mit Umläuten"] * 2, ids, strict=True)
    ]
    expected = {f"{root}/{name}" for name in ("config.json", "lock.json", "result.json", "job.log")}
    for name in names:
        own = {
            "config.json",
            "lock.json",
            "result.json",
            "trial.log",
            "agent/trace-parsed.jsonl",
            "artifacts/manifest.json",
        }
        expected |= {f"{root}/{name}/{path}" for path in own | set(FILES)}
    expected |= {f"{root}/{name}/verifier/reward.json" for name in names[:3]}
    expected.add(f"{root}/{names[3]}/exception.txt")
    assert set(files) == expected
    assert files[f"{root}/{names[0]}/verifier/test-stdout.txt"] == FILES["verifier/test-stdout.txt"]


async def test_building_twice_gives_the_same_digest(builder: Builder, db: Database, blobs: Blobs) -> None:
    job_id = await finished_job(db, blobs)
    first = await builder.build("job", job_id)
    await blobs.delete(first["blob_key"])
    second = await builder.build("job", job_id)
    assert (first["sha256"], first["size_bytes"]) == (second["sha256"], second["size_bytes"])
    assert await blobs.size_bytes(second["blob_key"]) == second["size_bytes"]


async def test_a_trials_download_is_its_folder_of_the_jobs(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    job_id = await finished_job(db, blobs)
    for trial_id in await trial_ids(db, job_id):
        own = await builder.files("trial", trial_id)
        of_job = await builder.files("job", job_id)
        folder = next(iter(own)).split("/")[0]
        prefix = f"job-{job_id}/"
        assert own == {
            name.removeprefix(prefix): content
            for name, content in of_job.items()
            if name.startswith(f"{prefix}{folder}/")
        }


async def test_the_statistics_agree_with_the_api(builder: Builder, db: Database, blobs: Blobs) -> None:
    job_id = await finished_job(db, blobs)
    files = await builder.files("job", job_id)
    stats = json.loads(files[f"job-{job_id}/result.json"])["stats"]
    api = (await job_reads.read_job(db, await caller_of_owner(db, None), job_id))["stats"]
    api_evals, evals = api.pop("evals"), stats.pop("evals")
    assert stats == {name: api[name] for name in stats}
    # One of four trials has no reward: an attempt that failed.
    assert evals["oracle__demo"]["pass_at_k"] == {"2": 1.0}
    for name in ("n_trials", "n_errors", "metrics", "pass_at_k"):
        assert evals["oracle__demo"][name] == api_evals["oracle__demo"][name]
    ids = await trial_ids(db, job_id)
    by_name = dict(zip((trial_name("alpha", i) for i in ids[:2]), ids[:2], strict=True))
    assert by_name[evals["oracle__demo"]["reward_stats"]["reward"]["0.0"][0]] == ids[1]


async def test_the_parsed_trace_is_a_line_for_each_event(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    job_id = await finished_job(db, blobs)
    files = await builder.files("trial", (await trial_ids(db, job_id))[0])
    (trace,) = (content for name, content in files.items() if name.endswith("/agent/trace-parsed.jsonl"))
    assert [json.loads(line) for line in trace.splitlines()] == [
        {"seq": 1, "type": "prompt", "data": {"_prompt": {"text": "Löse es."}}},
        {"seq": 2, "type": "log", "data": {"text": "a"}},
    ]


async def test_a_trial_that_never_started_has_records_and_nothing_else(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    await publish(db, "alpha")
    job_id = await accept(db)
    async with db.transaction() as connection:
        await record.cancel_job(connection, job_id)
    await record.finish_job(db, job_id)
    files = await builder.files("trial", (await trial_ids(db, job_id))[0])
    assert {name.split("/", 1)[1] for name in files} == {
        "config.json", "lock.json", "result.json", "trial.log", "exception.txt",
    }  # fmt: skip


async def test_execute_bits_are_kept(builder: Builder, db: Database, blobs: Blobs) -> None:
    await publish(db, "alpha")
    (trial_id,) = await trial_ids(db, await accept(db))
    await run_trial(
        db, blobs, trial_id, 1.0, {"artifacts/app/run.sh": b"echo\n", "artifacts/app/b": b"echo\n"}
    )
    row = await builder.build("trial", trial_id)
    with tarfile.open(fileobj=io.BytesIO(await blobs.get(row["blob_key"]))) as tar:
        modes = {entry.name.split("/", 1)[1]: entry.mode for entry in tar}
    assert (modes["artifacts/app/run.sh"], modes["artifacts/app/b"]) == (0o755, 0o644)


async def test_a_retried_trials_archive_is_not_found_any_more_and_built_anew(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    await publish(db, "alpha")
    (trial_id,) = await trial_ids(db, await accept(db))
    await run_trial(db, blobs, trial_id, 0.0)
    earlier = await builder.build("trial", trial_id)
    pool = await db.pool()
    await pool.execute("UPDATE trials SET attempt_number = 2 WHERE id = $1", trial_id)
    assert await archives.read_archive(db, "trial", trial_id) is None
    files = await builder.files("trial", trial_id)
    assert not any(name.endswith("agent/oracle.txt") for name in files)
    with pytest.raises(FileNotFoundError):
        await blobs.size_bytes(earlier["blob_key"])


@pytest.mark.parametrize("kind", ["job", "trial"])
async def test_a_subject_that_was_deleted_fails_the_build_by_name(
    builder: Builder, db: Database, kind: Kind
) -> None:
    with pytest.raises(EvolveError, match=f"{kind} gone does not exist or was deleted"):
        await builder.build(kind, "gone")
    row = await archives.read_archive(db, kind, "gone")
    assert row["state"] == "failed"
    assert "was deleted" in row["failure"]


async def test_what_still_runs_is_refused(builder: Builder, db: Database) -> None:
    await publish(db, "alpha")
    job_id = await accept(db)
    with pytest.raises(EvolveError, match="is RUNNING"):
        await builder.build("job", job_id)
    with pytest.raises(EvolveError, match="is QUEUED"):
        await builder.build("trial", (await trial_ids(db, job_id))[0])


@pytest.mark.parametrize("damage", ["gone", "damaged"])
async def test_a_damaged_blob_fails_the_archive_and_is_named(
    builder: Builder, db: Database, blobs: Blobs, damage: str
) -> None:
    job_id = await finished_job(db, blobs)
    trial_id = (await trial_ids(db, job_id))[0]
    key = f"trials/{trial_id}/1/{hashlib.sha256(FILES['verifier/reward.txt']).hexdigest()}"
    await (blobs.delete(key) if damage == "gone" else blobs.put(key, b"forged"))
    with pytest.raises(EvolveError, match=rf"verifier/reward\.txt: its blob is {damage}"):
        await builder.build("job", job_id)
    assert (await archives.read_archive(db, "job", job_id))["state"] == "failed"


async def test_asking_writes_one_intent_and_a_ready_archive_needs_none(
    builder: Builder, db: Database, blobs: Blobs
) -> None:
    job_id = await finished_job(db, blobs)
    assert (await archives.ask_for_archive(db, "job", job_id))["state"] == "building"
    pool = await db.pool()
    intents = await pool.fetch("SELECT subject_id, payload FROM intents WHERE kind = 'archive.build'")
    assert [(row["subject_id"], row["payload"]) for row in intents] == [(job_id, {"kind": "job"})]
    built = await builder.build("job", job_id)
    asked = await archives.ask_for_archive(db, "job", job_id)
    assert (asked["state"], asked["sha256"]) == ("ready", built["sha256"])
    assert await pool.fetchval("SELECT count(*) FROM intents WHERE kind = 'archive.build'") == 1


async def test_a_failed_build_is_tried_again_when_it_is_asked_for(db: Database) -> None:
    await publish(db, "alpha")
    job_id = await accept(db)
    await archives.mark_failed(db, "job", job_id, "why")
    row = await archives.ask_for_archive(db, "job", job_id)
    assert (row["state"], row["failure"]) == ("building", None)


@pytest.mark.parametrize("kind", ["job", "trial"])
async def test_of_a_deleted_subject_nothing_is_built_and_nothing_kept(db: Database, kind: str) -> None:
    assert await archives.ask_for_archive(db, kind, "gone") is None
    assert await archives.mark_ready(db, kind, "gone", ("its blob", "0" * 64, 1)) == "its blob"
    pool = await db.pool()
    assert await pool.fetchval("SELECT count(*) FROM archives") == 0
    assert await pool.fetchval("SELECT count(*) FROM intents") == 0


async def test_forgotten_archives_name_their_blobs(builder: Builder, db: Database, blobs: Blobs) -> None:
    job_id = await finished_job(db, blobs)
    row = await builder.build("job", job_id)
    async with db.transaction() as connection:
        assert await archives.forget_archives(connection, [job_id]) == [row["blob_key"]]
    assert await archives.read_archive(db, "job", job_id) is None


async def test_a_job_with_many_trials_is_read_page_by_page(
    builder: Builder, db: Database, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "TRIALS_AT_ONCE", 2)
    monkeypatch.setattr(archives, "ROWS_AT_ONCE", 3)
    await publish(db, "alpha")
    job_id = await accept(db, n_attempts=5)
    for trial_id in await trial_ids(db, job_id):
        await run_trial(db, blobs, trial_id, 1.0)
    await record.finish_job(db, job_id)
    files = await builder.files("job", job_id)
    traces = [content for name, content in files.items() if name.endswith("trace-parsed.jsonl")]
    assert [trace.count(b"\n") for trace in traces] == [2] * 5
    assert len(json.loads(files[f"job-{job_id}/lock.json"])["trials"]) == 5


async def test_a_kept_file_never_replaces_a_record(builder: Builder, db: Database, blobs: Blobs) -> None:
    job_id = await finished_job(db, blobs)
    trial_id = (await trial_ids(db, job_id))[0]
    await keep(db, blobs, trial_id, {"agent/trace-parsed.jsonl": b"forged\n"})
    files = {
        name.split("/", 1)[1]: content for name, content in (await builder.files("trial", trial_id)).items()
    }
    assert b"forged" not in files["agent/trace-parsed.jsonl"]
    left_out = json.loads(files["result.json"])["x_evolve"]["left_out"]
    assert left_out == ["agent/trace-parsed.jsonl: the name of a record"]

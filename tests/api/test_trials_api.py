from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from evolve import EvolveAPIError

from domain.vocabulary import AttemptPhase
from store import archives
from store.fences import Fence
from store.streams import keep_files
from store.trials import TrialFile
from tests.api.conditions import until
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job
from tests.api.test_wire import raw_request

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}


async def new_trials(api: Api, *, is_run: bool = True) -> list[Any]:
    await add_dataset(api.db, api.caller)
    job_id = (await api.http.post("/api/jobs", json=BODY)).json()["id"]
    if is_run:
        return await run_job(api.db, job_id, [1.0, 1.0, 1.0])
    pool = await api.db.pool()
    return list(await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id))


async def keep(api: Api, trial_id: str, files: dict[str, bytes]) -> None:
    rows: list[TrialFile] = []
    for path, data in files.items():
        key = f"trials/{trial_id}/1/{path}"
        await api.blobs.put(key, data)
        digest = hashlib.sha256(data).hexdigest()
        rows.append(
            TrialFile(
                trial_id=trial_id,
                attempt_number=1,
                path=path,
                size_bytes=len(data),
                sha256=digest,
                blob_key=key,
            )
        )
    job_id = await (await api.db.pool()).fetchval("SELECT job_id FROM trials WHERE id = $1", trial_id)
    await keep_files(api.db, Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1), rows)


async def test_files_are_listed_and_read_whole_or_in_part(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    await keep(api, trial_id, {"config.json": b"{}", "artifacts/app/x": b"0123456789", "empty": b""})
    trials = api.published().trials
    first = await trials.files(trial_id, limit=2)
    rest = await trials.files(trial_id, cursor=first.next_cursor)
    assert [(file.path, file.size_bytes) for file in first.items + rest.items] == [
        ("artifacts/app/x", 10),
        ("config.json", 2),
        ("empty", 0),
    ]
    assert await trials.file(trial_id, "artifacts/app/x") == b"0123456789"
    assert await trials.file(trial_id, "empty") == b""
    path = f"/api/trials/{trial_id}/files/artifacts/app/x"
    for asked, expected in (
        ("bytes=2-4", b"234"),
        ("bytes=7-", b"789"),
        ("bytes=-3", b"789"),
        ("bytes=8-99", b"89"),
    ):
        answer = await api.http.get(path, headers={"Range": asked})
        assert (answer.status_code, answer.content) == (206, expected)
    assert answer.headers["content-range"] == "bytes 8-9/10"
    assert (await api.http.get(path, headers={"Range": "bytes=10-"})).status_code == 416
    assert (await trials.get(trial_id)).session_ref == f"/api/trials/{trial_id}/files"
    with pytest.raises(EvolveAPIError) as caught:
        await trials.file(trial_id, "../secret")
    assert (caught.value.code, caught.value.status) == ("not_found", 404)


async def test_a_download_waits_for_its_archive_and_is_verified(api: Api, tmp_path: Path):
    row = (await new_trials(api))[0]
    data = b"archive " * 1000
    digest = hashlib.sha256(data).hexdigest()
    edition = await archives.edition_of(api.db, "trial", row["id"])
    assert edition is not None
    key = archives.blob_key("trial", row["id"], edition)
    await api.blobs.put(key, data)
    pool = await api.db.pool()
    trials = api.published().trials
    waiting = asyncio.create_task(trials.download(row["id"]))
    await until(api.db, "SELECT EXISTS (SELECT FROM intents WHERE kind = 'archive.build')")
    await archives.mark_ready(api.db, "trial", row["id"], (key, digest, len(data)))
    assert await asyncio.wait_for(waiting, 10) == data
    path = Path(await trials.download(row["id"], to=str(tmp_path)))
    assert path.name == f"trial-{row['id']}.tar.gz"
    _, headers, body = await asyncio.to_thread(raw_request, api, "GET", f"/api/trials/{row['id']}/download")
    named = dict(headers)
    assert (named["Content-Length"], named["x-package-sha256"]) == (str(len(data)), digest)
    assert body == data
    assert await pool.fetchval("SELECT count(*) FROM intents WHERE kind = 'archive.build'") == 1


async def test_a_failed_build_is_told_and_tried_again(api: Api):
    row = (await new_trials(api))[0]
    pool = await api.db.pool()
    path = f"/api/jobs/{row['job_id']}/download"
    waiting = asyncio.create_task(api.http.get(path))
    await until(api.db, "SELECT EXISTS (SELECT FROM archives)")
    await pool.execute("UPDATE archives SET state = 'failed', failure = 'disk full'")
    error = (await waiting).json()["error"]
    assert error["code"] == "internal_error"
    assert "disk full" in error["message"]
    again = asyncio.create_task(api.http.get(path))
    await until(api.db, "SELECT state = 'building' FROM archives")
    assert await pool.fetchval("SELECT count(*) FROM intents WHERE kind = 'archive.build'") == 2
    again.cancel()


@pytest.mark.parametrize("path", ["", "/trace", "/files", "/files/x", "/download"])
async def test_a_strangers_trial_does_not_exist(api: Api, path: str):
    trial_id = (await new_trials(api))[0]["id"]
    answer = await api.http.get(f"/api/trials/{trial_id}{path}", headers=api.headers(api.stranger_key))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "trial_not_found")

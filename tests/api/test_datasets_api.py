from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from evolve import EvolveAPIError

from api.limits import MAX_CONCURRENT_IMPORTS
from api.routers import datasets as datasets_router
from domain.vocabulary import DatasetImportPhase, DatasetVersionState
from store import import_record
from tests.api.conftest import Api
from tests.api.seeding import add_dataset

hosted = import_module("evolve.hosted")
MANIFEST = """
[dataset]
name = "acme/packed"
version = "2.0"
[[tasks]]
name = "acme/one"
digest = "sha256:{digest}"
""".format(digest="0" * 64)


def corpus(tmp_path: Path, **files: str) -> str:
    root = tmp_path / "corpus"
    for path, text in {"one/task.toml": "", "one/instruction.md": "do", **files}.items():
        target = root / path.replace("__", ".")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(root)


async def finish(api: Api, import_id: str, task: str = "one") -> None:
    """What the import's workflow would record."""
    pool = await api.db.pool()
    version_id = await pool.fetchval("SELECT version_id FROM dataset_imports WHERE id = $1", import_id)
    unpacker = import_record.Unpacker(import_id, version_id, 1)
    await import_record.start_phase(api.db, unpacker, DatasetImportPhase.EXTRACTING)
    await import_record.start_phase(
        api.db, unpacker, DatasetImportPhase.BUILDING, total=1, state=DatasetVersionState.BUILDING
    )
    await pool.execute(
        "INSERT INTO dataset_tasks (version_id, task_name, ordinal, state, verdicts, notes, images)"
        " VALUES ($1, $2, 0, 'READY', '{}', '[]', '{}')",
        version_id,
        task,
    )
    await import_record.finish_import(api.db, import_id, [])


def multipart(*parts: tuple[str, str | bytes], end: bool = True) -> tuple[bytes, dict[str, str]]:
    body = b""
    for name, value in parts:
        body += b"--bound\r\n"
        if isinstance(value, bytes):
            body += f'Content-Disposition: form-data; name="{name}"; filename="a.tar.gz"\r\n'.encode()
            body += b"Content-Type: application/gzip\r\n\r\n" + value
        else:
            body += f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        body += b"\r\n"
    body += b"--bound--\r\n" if end else b""
    return body, {"Content-Type": "multipart/form-data; boundary=bound"}


async def publish_raw(api: Api, *parts: tuple[str, str | bytes], end: bool = True) -> Any:
    body, headers = multipart(*parts, end=end)
    return await api.http.post("/api/datasets/publish", content=body, headers=headers)


async def test_the_published_client_publishes_watches_and_downloads(api: Api, tmp_path: Path):
    datasets = api.published().datasets
    accepted = await datasets.publish(directory=corpus(tmp_path), name="mine", version="1.0")
    assert (accepted.status, accepted.receiving) == ("QUEUED", False)
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT kind FROM intents") == "import.start"
    building = asyncio.create_task(finish(api, accepted.id))
    settled = await datasets.watch_import(accepted.id, poll_interval_s=0.05, timeout_s=20)
    await building
    assert settled.status == "COMPLETED"
    assert [phase.name for phase in settled.progress.phases] == ["extracting", "building"]

    dataset = await datasets.get_active("mine")
    assert (dataset.active_version.version, dataset.active_version.task_count) == ("1.0", 1)
    assert [task.task_name for task in dataset.tasks.items] == ["one"]
    assert (await datasets.get_task_build("mine@1.0", "one")).state == "READY"
    assert [found.name async for found in datasets.list(search="min")] == ["mine"]
    assert [found.id async for found in datasets.list_imports()] == [accepted.id]

    payload = await datasets.download("mine")
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        assert "one/task.toml" in archive.getnames()
    path = Path(await datasets.download("mine@1.0", to=str(tmp_path / "out")))
    assert await asyncio.to_thread(path.read_bytes) == payload
    assert path.name == "mine-corpus.tar.gz"


async def test_name_and_version_come_from_the_manifest(api: Api, tmp_path: Path):
    datasets = api.published().datasets
    accepted = await datasets.publish(directory=corpus(tmp_path, dataset__toml=MANIFEST))
    assert (accepted.name, accepted.version) == ("packed", "2.0")


async def test_a_large_corpus_is_sent_in_chunks(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosted, "RESUMABLE_UPLOAD_THRESHOLD_BYTES", 0)
    monkeypatch.setattr(hosted, "RESUMABLE_UPLOAD_CHUNK_BYTES", 100)
    datasets = api.published().datasets
    accepted = await datasets.publish(directory=corpus(tmp_path), name="big", version="1")
    assert (accepted.name, accepted.receiving) == ("big", False)
    await finish(api, accepted.id)
    payload = await datasets.download("big")
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        assert sorted(archive.getnames()) == ["one/instruction.md", "one/task.toml"]
    assert await api.blobs.list("uploads/") == []
    named_by_manifest = await datasets.publish(directory=corpus(tmp_path, dataset__toml=MANIFEST))
    assert named_by_manifest.name == "packed"


async def open_upload(api: Api, data: bytes, **changes: Any) -> dict[str, Any]:
    body = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    answer = await api.http.post("/api/datasets/publish/uploads", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def send_chunk(api: Api, session: str, offset: int, data: bytes, digest_of: bytes | None = None) -> Any:
    digest = hashlib.sha256(data if digest_of is None else digest_of).digest()
    headers = {
        "Content-Type": "application/offset+octet-stream",
        "Upload-Offset": str(offset),
        "Upload-Checksum": f"sha256 {b64encode(digest).decode()}",
    }
    return await api.http.patch(f"/api/datasets/publish/uploads/{session}", content=data, headers=headers)


async def test_an_upload_is_registered_first_and_keeps_its_import(api: Api):
    data = b"not really a tar"
    session = await open_upload(api, data, name="up", version="1")
    registered = await api.get(f"/api/datasets/imports/{session['import_id']}")
    assert (registered["status"], registered["receiving"]) == ("QUEUED", True)
    assert (await api.get("/api/datasets/up"))["latest_version"]["state"] == "RECEIVING"

    path = f"/api/datasets/publish/uploads/{session['id']}"
    assert (await api.http.head(path)).headers["Upload-Offset"] == "0"
    assert (await send_chunk(api, session["id"], 0, data[:5])).headers["Upload-Offset"] == "5"
    stale = await send_chunk(api, session["id"], 0, data[:5])
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "upload_offset_mismatch")
    bad = await send_chunk(api, session["id"], 5, data[5:], digest_of=b"other")
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "upload_chunk_digest_mismatch")
    early = await api.http.post(f"{path}/complete")
    assert early.json()["error"]["code"] == "upload_incomplete"
    too_much = await send_chunk(api, session["id"], 5, data)
    assert too_much.json()["error"]["code"] == "invalid_input"
    assert (await send_chunk(api, session["id"], 5, data[5:])).headers["Upload-Offset"] == str(len(data))

    replies = [(await api.http.post(f"{path}/complete")).json() for _ in range(2)]
    assert [reply["id"] for reply in replies] == [session["import_id"]] * 2
    assert replies[0]["receiving"] is False
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT count(*) FROM intents") == 1
    late = await send_chunk(api, session["id"], len(data), b"x")
    assert (late.status_code, late.json()["error"]["code"]) == (410, "upload_session_failed")


async def test_an_upload_with_another_digest_fails_its_import(api: Api):
    session = await open_upload(api, b"abc", name="up", version="1")
    pool = await api.db.pool()
    await pool.execute("UPDATE upload_sessions SET sha256 = $1", "0" * 64)
    await send_chunk(api, session["id"], 0, b"abc")
    path = f"/api/datasets/publish/uploads/{session['id']}/complete"
    first, second = [(await api.http.post(path)).json()["error"]["code"] for _ in range(2)]
    assert (first, second) == ("upload_archive_digest_mismatch", "upload_session_failed")
    assert (await api.get(f"/api/datasets/imports/{session['import_id']}"))["status"] == "FAILED"


async def test_a_strangers_session_does_not_exist(api: Api):
    session = await open_upload(api, b"abc", name="up", version="1")
    path = f"/api/datasets/publish/uploads/{session['id']}"
    assert (await api.http.head(path, headers=api.headers(api.stranger_key))).status_code == 404


async def test_an_abandoned_upload_gives_way_to_a_publish(api: Api, tmp_path: Path):
    session = await open_upload(api, b"abc", name="up", version="1")
    accepted = await api.published().datasets.publish(directory=corpus(tmp_path), name="up", version="1")
    assert accepted.status == "QUEUED"
    assert (await api.get(f"/api/datasets/imports/{session['import_id']}"))["status"] == "FAILED"


async def test_a_label_is_published_again_in_place(api: Api, tmp_path: Path):
    datasets = api.published().datasets
    first = await datasets.publish(directory=corpus(tmp_path), name="mine", version="1")
    with pytest.raises(EvolveAPIError) as caught:
        await datasets.publish(directory=corpus(tmp_path), name="mine", version="1")
    assert (caught.value.code, caught.value.details["version"]) == ("dataset_import_in_progress", "1")
    await finish(api, first.id)
    second = await datasets.publish(directory=corpus(tmp_path), name="mine", version="1")
    assert (await datasets.get("mine")).active_version.state == "READY"
    await finish(api, second.id, "two")
    assert [task.task_name for task in (await datasets.get("mine")).tasks.items] == ["two"]
    assert len((await datasets.get("mine")).versions) == 1


async def test_a_taken_name_is_refused_before_the_archive_is_read(api: Api):
    await add_dataset(api.db, api.caller, "mine")

    async def body() -> AsyncIterator[bytes]:
        data, _ = multipart(("name", "mine"), ("version", "2"), ("archive", b"x" * 10), end=False)
        yield data
        for _ in range(64):
            yield b"x" * 65536
        yield b"\r\n--bound--\r\n"

    _, headers = multipart()
    headers |= api.headers(api.stranger_key)
    answer = await api.http.post("/api/datasets/publish", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "dataset_name_taken")


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ([("name", "a"), ("version", "1")], "invalid_input", "archive"),
        ([("name", "a"), ("git_url", "https://x"), ("archive", b"x")], "invalid_input", "archive"),
        ([("name", "a"), ("version", "1"), ("git_url", "https://x")], "feature_unsupported", "git_url"),
        ([("hub_package", "a/b")], "feature_unsupported", "hub_package"),
        ([("name", "a@b"), ("version", "1"), ("archive", b"x")], "invalid_input", "name"),
        ([("name", "imports"), ("version", "1"), ("archive", b"x")], "invalid_input", "name"),
        ([("name", ""), ("version", "1"), ("archive", b"x")], "invalid_input", "name"),
        ([("name", "a"), ("version", " 1"), ("archive", b"x")], "invalid_input", "version"),
        ([("name", "a"), ("colour", "1"), ("archive", b"x")], "invalid_input", "colour"),
        ([("name", "a"), ("version", "1"), ("org", "o"), ("archive", b"x")], "org_not_found", "org"),
        ([("name", "a"), ("archive", b"not gzip")], "invalid_archive", None),
        ([("name", "a"), ("name", "b"), ("archive", b"x")], "invalid_multipart", None),
        ([("archive", b"x"), ("name", "a")], "invalid_multipart", None),
    ],
)
async def test_a_bad_publish_is_refused_by_its_part(
    api: Api, parts: list[tuple[str, str | bytes]], code: str, param: str | None
):
    before = await api.blobs.list("packages/")
    error = (await publish_raw(api, *parts)).json()["error"]
    assert (error["code"], error.get("param")) == (code, param)
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT count(*) FROM dataset_imports") == 0
    assert await api.blobs.list("packages/") == before


async def test_a_body_that_ends_early_is_malformed(api: Api):
    answer = await publish_raw(api, ("name", "a"), ("version", "1"), ("archive", b"x"), end=False)
    assert answer.json()["error"]["code"] == "invalid_multipart"
    answer = await api.http.post("/api/datasets/publish", content=b"{}")
    assert answer.json()["error"]["code"] == "invalid_multipart"


async def test_too_many_publishes_at_once_are_refused_with_the_number(
    api: Api, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(datasets_router._imports, "_n_inside", MAX_CONCURRENT_IMPORTS)
    error = (await publish_raw(api, ("name", "a"), ("archive", b"x"))).json()["error"]
    assert error["code"] == "too_many_concurrent_imports"
    assert error["details"] == {"max_concurrent": MAX_CONCURRENT_IMPORTS}
    assert "retryAfterSec" not in error


async def test_a_dataset_shows_versions_tasks_and_failures(api: Api):
    await add_dataset(api.db, api.caller, version="1.0", failed=["broken"])
    await add_dataset(api.db, api.caller, version="2.0", tasks=["t1", "t2", "t3"], is_active=False)
    datasets = api.published().datasets
    dataset = await datasets.get("demo")
    assert dataset.selected_version.version == "1.0"
    assert dataset.latest_version.version == "2.0"
    assert [(f.task_name, f.failure.code) for f in dataset.failed_tasks] == [("broken", "image_build_failed")]
    assert dataset.tasks.items[0].providers["local"].ok
    first = await api.get("/api/datasets/demo", version="2.0", limit=2)
    assert [task["task_name"] for task in first["tasks"]["items"]] == ["t1", "t2"]
    rest = await api.get("/api/datasets/demo", version="2.0", cursor=first["tasks"]["nextCursor"])
    assert [task["task_name"] for task in rest["tasks"]["items"]] == ["t3"]
    build = await datasets.get_task_build("demo@1.0", "broken")
    assert (build.state, build.failure.excerpt) == ("FAILED", "log")
    with pytest.raises(EvolveAPIError) as caught:
        await datasets.get_task_build("demo@1.0", "nobody")
    assert (caught.value.code, caught.value.status) == ("task_not_found", 404)
    assert (await datasets.activate("demo", "2.0")).active_version.version == "2.0"


async def test_a_dataset_without_an_active_version_is_no_error(api: Api):
    await add_dataset(api.db, api.caller, is_active=False)
    document = await api.get("/api/datasets/demo")
    assert (document["active_version"], document["selected_version"]) == (None, None)
    assert document["tasks"]["items"] == []
    answer = await api.http.get("/api/datasets/demo/download")
    assert answer.json()["error"]["code"] == "no_active_version"
    answer = await api.http.post(
        "/api/jobs", json={"datasets": [{"name": "demo"}], "agents": [{"name": "nop"}]}
    )
    assert answer.json()["error"]["code"] == "no_active_version"


async def test_a_dataset_that_jobs_name_is_kept(api: Api):
    await add_dataset(api.db, api.caller)
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "nop"}]}
    job = (await api.http.post("/api/jobs", json=body)).json()
    datasets = api.published().datasets
    with pytest.raises(EvolveAPIError) as caught:
        await datasets.delete("demo")
    assert (caught.value.code, caught.value.details["sampleJobIds"]) == ("dataset_in_use", [job["id"]])
    await add_dataset(api.db, api.caller, "other")
    await datasets.delete("other")
    with pytest.raises(EvolveAPIError) as caught:
        await datasets.get("other")
    assert caught.value.code == "dataset_not_found"


async def test_an_upload_has_no_upstream_to_watch(api: Api):
    await add_dataset(api.db, api.caller)
    with pytest.raises(EvolveAPIError) as caught:
        await api.published().datasets.update("demo", upstream_auto_import=True)
    assert (caught.value.code, caught.value.status) == ("upstream_not_watchable", 409)


async def test_a_package_that_is_gone_or_damaged_is_not_promised(api: Api):
    await add_dataset(api.db, api.caller)
    pool = await api.db.pool()
    answer = await api.http.get("/api/datasets/demo/download")
    assert answer.json()["error"]["code"] == "package_not_retained"
    await pool.execute(
        "UPDATE dataset_versions SET package_key = 'p', package_sha256 = 'x', package_bytes = 3"
    )
    answer = await api.http.get("/api/datasets/demo/download")
    assert answer.json()["error"]["code"] == "package_missing"
    await api.blobs.put("p", b"abc")
    answer = await api.http.get("/api/datasets/demo/download")
    assert answer.json()["error"]["code"] == "package_corrupt"


async def test_the_published_client_has_tasks_judged_before_it_uploads(api: Api, tmp_path: Path):
    files = {"two/task.toml": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.b"]\n'}
    root = corpus(tmp_path, **files, **{"one/task.toml": 'schema_version = "1.3"\n'})
    verdict = await api.published().datasets.preflight(directory=root)
    assert (verdict.tasks_total, verdict.tasks_ok, verdict.tasks_refused) == (2, 1, 1)
    one, two = verdict.tasks
    assert one.ok
    assert one.providers["local"].ok
    assert not two.ok
    assert "network_mode" in two.reason
    read_only = await api.http.post(
        "/api/datasets/preflight",
        json={"tasks": [{"name": "a", "task_toml": "x = ["}]},
        headers=api.headers(api.read_only_key),
    )
    assert read_only.json()["tasks_refused"] == 1

"""What nobody needs any more is found and ended; what is in use, or not ours, is left alone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from activities import reap_workflows
from activities.sandboxes.base import BoxListing, BoxTag
from activities.signatures import ReapOrder, ReapReport
from domain.errors import ProviderUnreachable
from domain.reaping import LeftoverKind
from store import leftovers
from store.database import now
from store.incidents import IncidentKind, list_incidents, note_incident
from store.installation import installation_id
from store.keys import key_text
from store.server_secret import ServerSecret
from store.spend import reserve
from tests.api.conditions import until
from tests.factories import make_import, make_owner, task_files
from tests.finished_jobs import accept
from tests.inprocess import SECRET, Platform
from tests.store.money_factory import minted, new_call
from tests.waiting import eventually
from workflows import names
from workflows.reaper import ReaperWorkflow

BODY: dict[str, Any] = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}
HOUR = 3600.0


async def reap(platform: Platform, *, is_dry: bool = False) -> ReapReport:
    """One look around in which nothing went wrong."""
    report = await look_around(platform, is_dry=is_dry)
    assert report.problems == []
    return report


async def look_around(platform: Platform, *, is_dry: bool = False) -> ReapReport:
    """The same whatever went wrong, once the host is known to live."""
    await until(platform.db, "SELECT EXISTS (SELECT FROM hosts)")
    return await platform.client.execute_workflow(
        ReaperWorkflow.run, ReapOrder(is_dry=is_dry), id=f"reaper-{uuid4()}", task_queue=platform.queue
    )


def found(report: ReapReport, kind: LeftoverKind) -> dict[str, str]:
    """Subject → why."""
    return {each.subject: each.why for each in report.leftovers if each.kind == kind}


async def held_job(platform: Platform) -> Any:
    """A job whose one trial is held in its agent."""
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("agent")
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW, BODY, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    return handle


async def only_trial(platform: Platform) -> dict[str, Any]:
    [trial] = await platform.rows("SELECT * FROM trials")
    return trial


async def make_box(platform: Platform, *, age_sec: float, **tag: Any) -> str:
    """A box that no trial knows of."""
    ours = await installation_id(platform.db)
    made = BoxTag(
        **{
            "installation_id": ours, "job_id": "job", "trial_id": str(uuid4()), "attempt_number": 1,
            "step": 0, "role": "agent", "fence": 1, **tag,
        }
    )  # fmt: skip
    folder = platform.provider.boxes / made.name
    folder.mkdir()
    (folder / "tag.json").write_text(json.dumps(asdict(made)))
    grow_old(folder / "tag.json", age_sec)
    return made.name


def grow_old(path: Path, age_sec: float) -> None:
    then = now().timestamp() - age_sec
    os.utime(path, (then, then))


def boxes(platform: Platform) -> set[str]:
    return {path.name for path in platform.provider.boxes.iterdir()}


class TestBoxes:
    async def test_an_unleased_box_goes_a_foreign_and_a_young_one_stay(self, platform: Platform) -> None:
        left = await make_box(platform, age_sec=HOUR)
        young = await make_box(platform, age_sec=1)
        building = await make_box(platform, age_sec=HOUR / 2, job_id="agent-build")
        foreign = await make_box(platform, age_sec=HOUR, installation_id="another")
        told = await reap(platform, is_dry=True)
        assert found(told, LeftoverKind.BOX) == {left: "nobody leases it"}
        assert boxes(platform) == {left, young, building, foreign}
        assert found(await reap(platform), LeftoverKind.BOX) == {left: "nobody leases it"}
        assert boxes(platform) == {young, building, foreign}

    async def test_a_leased_box_stays_however_old_it_is(self, platform: Platform) -> None:
        await held_job(platform)
        [box] = boxes(platform)
        grow_old(platform.provider.boxes / box / "tag.json", 1000 * HOUR)
        report = await reap(platform)
        assert report.leftovers == []
        assert boxes(platform) == {box}

    async def test_a_box_that_was_made_after_its_trial_was_over_goes_by_its_tag(
        self, platform: Platform
    ) -> None:
        """Its creator was answered too late, and died before it could see to it."""
        handle = await held_job(platform)
        await handle.signal(names.SIGNAL_CANCEL)
        await handle.result()
        assert boxes(platform) == set()
        trial = await only_trial(platform)
        late = await make_box(platform, age_sec=HOUR, trial_id=trial["id"])
        assert found(await reap(platform), LeftoverKind.BOX) == {}  # its creator may still be at work
        await platform.rows("UPDATE box_leases SET gone_at = gone_at - interval '1 hour'")
        assert found(await reap(platform), LeftoverKind.BOX) == {late: "its lease has ended"}
        assert boxes(platform) == set()

    async def test_a_box_and_room_that_outlived_their_trial_are_given_back(self, platform: Platform) -> None:
        await held_job(platform)
        trial = await only_trial(platform)
        [box] = boxes(platform)
        await platform.rows(
            "INSERT INTO box_leases SELECT 'never-made', host_id, provider, 'deleted', 1, cpus, memory_mb,"
            " 'reserved', NULL, reserved_at - interval '1 hour', NULL FROM box_leases"
        )
        await platform.rows(
            "UPDATE trials SET status = 'CANCELLED', finished_at = now() - interval '1 hour' WHERE id = $1",
            trial["id"],
        )
        report = await reap(platform)
        assert found(report, LeftoverKind.BOX) == {box: "its trial is over"}
        assert found(report, LeftoverKind.ROOM) == {"never-made": "its trial is over and there is no box"}
        assert await platform.rows("SELECT name FROM box_leases WHERE state <> 'gone'") == []

    async def test_a_box_that_cannot_be_ended_keeps_no_other_back(self, platform: Platform) -> None:
        both = {await make_box(platform, age_sec=HOUR), await make_box(platform, age_sec=HOUR)}
        platform.provider.faults.plan("destroy", "reply-lost")
        report = await look_around(platform)
        [ended] = found(report, LeftoverKind.BOX)
        [stuck] = both - {ended}
        assert report.problems == [f"boxes of local: {stuck}: reply-lost at destroy"]
        assert boxes(platform) == {stuck}
        assert set(found(await reap(platform), LeftoverKind.BOX)) == {stuck}

    async def test_room_of_a_provider_that_is_away_is_not_given_back_by_guess(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(installation_id: str) -> list[BoxListing]:
            raise ProviderUnreachable("the engine is away")

        await held_job(platform)
        await platform.rows("UPDATE trials SET status = 'CANCELLED', finished_at = now() - interval '1 hour'")
        monkeypatch.setattr(platform.provider, "list", away)
        report = await look_around(platform)
        assert [problem.partition(":")[0] for problem in report.problems] == ["boxes of local"]
        assert found(report, LeftoverKind.ROOM) == {}
        assert len(await platform.rows("SELECT name FROM box_leases WHERE state <> 'gone'")) == 1


class TestRefusedDeletes:
    async def test_a_box_that_may_not_be_deleted_is_stopped_and_told(self, platform: Platform) -> None:
        left = await make_box(platform, age_sec=HOUR)
        platform.provider.faults.plan("destroy", "delete-refused", "delete-refused")
        await reap(platform)
        assert (platform.provider.boxes / left / "stopped").exists()
        await reap(platform)
        [incident] = await list_incidents(platform.db, is_open_only=True)
        assert (incident["kind"], incident["subject"], incident["n_times"]) == ("delete_refused", left, 2)
        assert "it is stopped" in incident["message"]
        await reap(platform)
        assert boxes(platform) == set()
        assert await list_incidents(platform.db, is_open_only=True) == []
        assert len(await list_incidents(platform.db, is_open_only=False)) == 1

    async def test_a_trial_settles_beside_it_and_its_room_is_free(self, platform: Platform) -> None:
        handle = await held_job(platform)
        platform.provider.faults.plan("destroy", "delete-refused")
        platform.provider.barriers.release("agent")
        await handle.result()
        assert (await only_trial(platform))["status"] == "SCORED"
        [box] = boxes(platform)
        assert [each["subject"] for each in await list_incidents(platform.db, is_open_only=True)] == [box]
        assert await platform.rows("SELECT name FROM box_leases WHERE state <> 'gone'") == []

    async def test_a_box_that_somebody_else_ended_is_no_incident_any_more(self, platform: Platform) -> None:
        handle = await held_job(platform)
        platform.provider.faults.plan("destroy", "delete-refused")
        platform.provider.barriers.release("agent")
        await handle.result()
        [box] = boxes(platform)
        await reap(platform)
        assert len(await list_incidents(platform.db, is_open_only=True)) == 1  # it is there still
        shutil.rmtree(platform.provider.boxes / box)
        await reap(platform, is_dry=True)
        assert len(await list_incidents(platform.db, is_open_only=True)) == 1
        await reap(platform)
        assert await list_incidents(platform.db, is_open_only=True) == []

    async def test_one_without_a_lease_is_over_when_nobody_has_met_it_for_a_day(
        self, platform: Platform
    ) -> None:
        await note_incident(platform.db, IncidentKind.DELETE_REFUSED, "of-a-build", "403")
        await platform.rows("UPDATE incidents SET last_at = now() - interval '23 hours'")
        await reap(platform)
        assert len(await list_incidents(platform.db, is_open_only=True)) == 1
        await platform.rows("UPDATE incidents SET last_at = now() - interval '25 hours'")
        await reap(platform)
        assert await list_incidents(platform.db, is_open_only=True) == []


class TestMoney:
    async def test_a_living_key_of_a_trial_that_is_over_is_revoked(self, platform: Platform) -> None:
        handle = await held_job(platform)
        trial = await only_trial(platform)
        own = await minted(platform.db, trial_id=trial["id"], job_id=trial["job_id"])
        left = await minted(platform.db)
        await platform.rows("UPDATE gateway_keys SET created_at = created_at - interval '1 hour'")
        assert set(found(await reap(platform), LeftoverKind.KEY)) == {left.key_id}
        [revoked] = await platform.rows("SELECT id FROM gateway_keys WHERE revoked_at IS NOT NULL")
        assert revoked["id"] == left.key_id != own.key_id
        assert key_text(ServerSecret(SECRET), left.key_id) not in repr(
            [event async for event in handle.fetch_history_events()]
        )

    async def test_calls_of_a_gateway_that_never_came_back_are_booked_at_their_holds(
        self, platform: Platform
    ) -> None:
        key = await minted(platform.db)
        old = now() - leftovers.CALL_GRACE - timedelta(minutes=1)
        await reserve(platform.db, new_call(key, 70, gateway_id="gone", started_at=old))
        await reserve(platform.db, new_call(key, 50, gateway_id="here"))
        assert set(found(await reap(platform), LeftoverKind.CALL)) == {"gateway gone"}
        [row] = await platform.rows("SELECT spent_nanos, held_nanos, n_open FROM gateway_keys")
        assert row == {"spent_nanos": 70, "held_nanos": 50, "n_open": 1}


class TestStoredThings:
    async def test_uploads_and_half_written_blobs_go_when_nobody_writes_them(
        self, platform: Platform, tmp_path: Path
    ) -> None:
        owner = await make_owner(platform.db)
        for name, age in (("idle", "2 days"), ("busy", "1 minute"), ("done", "1 hour")):
            await platform.rows(
                "INSERT INTO upload_sessions (id, owner_user_id, kind, size_bytes, sha256, offset_bytes,"
                " fields, state, created_at, updated_at) VALUES ($1, $2, 'dataset', 9, '', 0, '{}', $3,"
                " now(), now() - $4::text::interval)",
                name, owner.id, "complete" if name == "done" else "open", age,
            )  # fmt: skip
            await platform.blobs.put(f"uploads/{name}/000", b"x")
        old, young = tmp_path / "blobs/packages/a.bin#1", tmp_path / "blobs/packages/b.bin#1"
        old.parent.mkdir()
        for path in (old, young):
            path.write_bytes(b"half")
        grow_old(old, 24 * HOUR)
        told = await reap(platform, is_dry=True)
        assert await platform.blobs.list("uploads/") == [
            "uploads/busy/000", "uploads/done/000", "uploads/idle/000",
        ]  # fmt: skip
        report = await reap(platform)
        assert told.n_by_kind == report.n_by_kind == {"blob": 1, "upload": 2}
        assert set(found(report, LeftoverKind.UPLOAD)) == {"idle", "done"}
        assert set(found(report, LeftoverKind.BLOB)) == {"packages/a.bin#1"}
        assert young.exists()
        # The session that failed just now may still be asked about; the next look takes its chunk.
        await platform.rows("UPDATE upload_sessions SET updated_at = updated_at - interval '1 day'")
        await reap(platform)
        assert await platform.blobs.list("uploads/") == ["uploads/busy/000"]

    async def test_intents_that_were_delivered_long_ago_go(self, platform: Platform) -> None:
        for days in (8, 1):
            await platform.rows(
                "INSERT INTO intents (kind, subject_id, payload, created_at, delivered_at, n_tries)"
                " VALUES ('job.start', 'x', '{}', now(), now() - make_interval(days => $1), 1)",
                days,
            )
        await reap(platform)
        assert len(await platform.rows("SELECT FROM intents")) == 1

    async def test_output_in_pieces_of_a_settled_trial_becomes_its_files(self, platform: Platform) -> None:
        handle = await held_job(platform)
        platform.provider.barriers.release("agent")
        await handle.result()
        trial = await only_trial(platform)
        await platform.rows("DELETE FROM trial_files")
        await platform.rows(
            "INSERT INTO stream_chunks VALUES ($1, 1, 'verifier/stdout', 0, 'left behind')", trial["id"]
        )
        await platform.rows("UPDATE trials SET finished_at = finished_at - interval '1 hour'")
        assert list(found(await reap(platform), LeftoverKind.STREAM)) == [f"{trial['id']}, attempt 1"]
        assert await platform.rows("SELECT FROM stream_chunks") == []
        [file] = await platform.rows("SELECT path, blob_key FROM trial_files")
        assert file["path"] == "verifier/test-stdout.txt"
        assert await platform.blobs.get(str(file["blob_key"])) == b"left behind"


class TestJobsAndTrials:
    async def test_a_job_that_was_accepted_and_never_started_is_started(self, platform: Platform) -> None:
        await platform.publish("demo", task_files("alpha"))
        job_id = await accept(platform.db, sandbox_provider="local")
        await platform.rows("UPDATE intents SET delivered_at = now()")
        await platform.rows("UPDATE jobs SET updated_at = updated_at - interval '1 hour'")
        assert set(found(await reap(platform, is_dry=True), LeftoverKind.JOB)) == {job_id}
        assert set(found(await reap(platform), LeftoverKind.JOB)) == {job_id}
        wanted = await platform.rows("SELECT kind FROM intents WHERE delivered_at IS NULL")
        assert wanted == [{"kind": "job.start"}]
        # While its start is on its way, nothing more is to be done.
        assert found(await reap(platform), LeftoverKind.JOB) == {}

    async def test_an_import_without_a_workflow_is_started_and_an_ended_one_has_failed(
        self, platform: Platform
    ) -> None:
        unstarted = await make_import(platform.db, platform.blobs, "unstarted", task_files("alpha"))
        ended = await make_import(platform.db, platform.blobs, "ended", task_files("alpha"))
        handle = await platform.client.start_workflow(
            names.DATASET_IMPORT_WORKFLOW,
            {"import_id": ended},
            id=names.dataset_import_workflow_id(ended),
            task_queue="nobody's",
        )
        await handle.terminate()
        await platform.rows("UPDATE dataset_imports SET updated_at = updated_at - interval '1 hour'")
        assert set(found(await reap(platform), LeftoverKind.IMPORT)) == {unstarted, ended}
        wanted = await platform.rows("SELECT kind, subject_id FROM intents WHERE delivered_at IS NULL")
        assert wanted == [{"kind": "import.start", "subject_id": unstarted}]
        rows = await platform.rows("SELECT id FROM dataset_imports WHERE status = 'FAILED'")
        assert rows == [{"id": ended}]

    async def test_what_a_terminated_job_left_is_cancelled(self, platform: Platform) -> None:
        handle = await held_job(platform)
        await handle.terminate()
        await platform.rows("UPDATE jobs SET updated_at = updated_at - interval '1 hour'")
        [why] = found(await reap(platform), LeftoverKind.JOB).values()
        assert "TERMINATED" in why
        end = await platform.client.get_workflow_handle(handle.id).result()
        assert (end["status"], end["by_status"]["CANCELLED"]) == ("CANCELLED", 1)
        assert boxes(platform) == set()

    async def test_a_trial_whose_workflow_is_gone_is_closed_for_a_reason_of_its_own(
        self, platform: Platform
    ) -> None:
        handle = await held_job(platform)
        trial = await only_trial(platform)
        await platform.rows("UPDATE trials SET started_at = started_at - interval '1 hour'")
        assert (await reap(platform)).leftovers == []
        await platform.client.get_workflow_handle(f"trial/{trial['id']}").terminate()
        assert set(found(await reap(platform), LeftoverKind.TRIAL)) == {trial["id"]}
        end = await handle.result()
        assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
        message = (await only_trial(platform))["result"]["exception_info"]["exception_message"]
        assert "ended from outside" in message
        assert boxes(platform) == set()

    async def test_a_workflow_whose_trial_settled_long_ago_is_ended(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reap_workflows, "SETTLED_GRACE", timedelta(0))
        await held_job(platform)
        trial = await only_trial(platform)
        await platform.rows("UPDATE trials SET status = 'CANCELLED', finished_at = now() - interval '9 min'")
        report = await reaped(platform, lambda told: bool(found(told, LeftoverKind.WORKFLOW)))
        assert found(report, LeftoverKind.WORKFLOW) == {
            f"trial/{trial['id']}": "its work has settled: cancelled"
        }
        await platform.client.get_workflow_handle(f"trial/{trial['id']}").result()
        assert boxes(platform) == set()


async def reaped(platform: Platform, condition: Callable[[ReapReport], bool]) -> ReapReport:
    """The first look that the condition holds for: Temporal's lists come a little late."""
    async with asyncio.timeout(60):
        while not condition(report := await reap(platform)):  # noqa: ASYNC110 - Temporal's lists
            await asyncio.sleep(0.1)
    return report


class TestDisk:
    async def test_images_over_the_budget_go_the_least_needed_first(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = platform.provider.boxes.parent / "images"
        folder.mkdir()
        for name, age in (("unneeded", 2 * HOUR), ("needed", 9 * HOUR), ("used", 9 * HOUR), ("young", 1)):
            (folder / name).write_bytes(b"x" * 1024)
            grow_old(folder / name, age)
        await held_job(platform)
        await platform.rows("""UPDATE dataset_tasks SET images = '{"local": {"id": "fast:used"}}'""")
        await platform.rows(
            "INSERT INTO dataset_tasks (version_id, task_name, ordinal, state, verdicts, notes, images)"
            " SELECT version_id, 'other', 9, 'READY', '{}', '[]', '{\"local\": {\"id\": \"fast:needed\"}}'"
            " FROM dataset_tasks"
        )
        await platform.rows("UPDATE dataset_versions SET created_at = created_at - interval '2 days'")
        monkeypatch.setattr(
            "activities.reap_disk._bytes", lambda budget_gb: 3 * 1024 if budget_gb == 50 else 1 << 40
        )
        report = await reap(platform)
        assert list(found(report, LeftoverKind.IMAGE)) == ["local unneeded"]
        monkeypatch.setattr("activities.reap_disk._bytes", lambda budget_gb: 0)
        report = await reap(platform)
        assert list(found(report, LeftoverKind.IMAGE)) == ["local needed"]
        assert {path.name for path in folder.iterdir()} == {"used", "young"}

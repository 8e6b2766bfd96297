"""An installation saved as one file, lost, and put back."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.stack.backup import FORMAT, MANIFEST, back_up
from cli.stack.errors import BackupError
from cli.stack.home import Home
from cli.stack.restore import check_archive, restore
from tests.bench.stacks import FAST
from tests.cli.conftest import Evolve
from tests.cli.stack_harness import Stack, temporary_stack
from tests.factories import task_files
from tests.running_platform import RunningPlatform

GIB = 1 << 30


@pytest.fixture
def stack() -> Iterator[Stack]:
    with temporary_stack(environment=FAST) as made:
        made.up()
        yield made


@pytest.mark.stack
@pytest.mark.timeout(600)
def test_a_lost_home_is_restored_with_its_records_and_files_and_runs_jobs_again(
    stack: Stack, tmp_path: Path
) -> None:
    archive = tmp_path / "evolve.tar.gz"
    platform = RunningPlatform(stack)
    platform.publish("tasks", task_files("one"))
    platform.close()
    job_id, trial, files = _run_job(stack)
    disk = stack.home / "state" / "boxes" / "living" / "disk"
    disk.parent.mkdir(parents=True)
    with disk.open("wb") as file:
        file.truncate(10 * GIB)

    # From a shell with other settings, here ports: it is started again as it was.
    saved = Stack(stack.home).run("backup", str(archive))
    assert saved.returncode == 0, saved.stdout + saved.stderr
    stack.await_healthy()
    platform = RunningPlatform(stack)
    assert platform.trials(job_id)[0] == trial
    platform.close()
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert archive.stat().st_size < GIB // 4
    again = stack.run("backup", str(archive))
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
    refused = stack.run("restore", str(archive))
    assert (refused.returncode, "`evolve down` first" in refused.stderr) == (1, True)

    stack.down()
    shutil.rmtree(stack.home)
    restored = stack.run("restore", str(archive))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    assert stat.S_IMODE(stack.home.stat().st_mode) == 0o700
    assert not (stack.home / MANIFEST).exists()
    stack.up()
    platform = RunningPlatform(stack)
    assert platform.trials(job_id)[0] == trial
    assert platform.trial_files(trial["id"]) == files
    platform.close()
    new_job, _, _ = _run_job(stack)
    assert new_job != job_id


def _run_job(stack: Stack) -> tuple[str, dict[str, object], dict[str, bytes]]:
    """Its id, its one trial, and the trial's files."""
    platform = RunningPlatform(stack)
    body = {"datasets": [{"name": "tasks"}], "agents": [{"name": "oracle"}]}
    job_id = platform.start_job(body, os.urandom(4).hex())
    assert platform.await_job(job_id)["status"] == "COMPLETED"
    [trial] = platform.trials(job_id)
    assert trial["reward"] == 1.0
    files = platform.trial_files(trial["id"])
    platform.close()
    assert files
    return job_id, trial, files


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home at rest."""
    made = Home(tmp_path / "home")
    made.make()
    made.pg_data.mkdir()
    (made.pg_data / "PG_VERSION").write_text("18\n")
    return made


def test_a_backup_keeps_holes_links_and_modes_and_leaves_out_boxes_and_logs(
    home: Home, tmp_path: Path
) -> None:
    with (home.pg_data / "sparse").open("wb") as file:
        file.truncate(GIB)
        file.seek(GIB // 2)
        file.write(b"kept")
    layer = home.path / "state" / "images" / "one"
    layer.mkdir(parents=True)
    (layer / "absolute").symlink_to("/etc/passwd")
    (layer / "set").write_text("run me")
    (layer / "set").chmod(0o4755)
    (home.log("worker")).write_text("lines")
    for name in ("boxes", "builds", "trash"):
        (home.path / "state" / name / "much").mkdir(parents=True)
    archive = tmp_path / "saved"
    back_up(home, archive, print)
    restore(home, archive, print)
    [aside] = tmp_path.glob("home.before-*")
    assert (aside / "logs" / "worker.log").exists()
    sparse = home.pg_data / "sparse"
    assert (sparse.stat().st_size, sparse.stat().st_blocks * 512 < GIB // 8) == (GIB, True)
    with sparse.open("rb") as file:
        file.seek(GIB // 2)
        assert file.read(4) == b"kept"
    kept = home.path / "state" / "images" / "one"
    assert (kept / "absolute").readlink() == Path("/etc/passwd")
    assert stat.S_IMODE((kept / "set").stat().st_mode) == 0o4755
    assert [entry.name for entry in (home.path / "state").iterdir()] == ["images"]
    assert not (home.path / "logs").exists()


def test_a_backup_that_fails_leaves_no_file(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "tar"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo GNU tar && exit\necho no space left >&2; exit 2\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    target = tmp_path / "out" / "saved"
    target.parent.mkdir()
    with pytest.raises(BackupError, match=r"saved was not written: no space left"):
        back_up(home, target, print)
    assert list(target.parent.iterdir()) == []


def test_a_backup_goes_nowhere_inside_its_own_home_and_saves_only_an_installation(
    home: Home, tmp_path: Path
) -> None:
    with pytest.raises(BackupError, match="inside of"):
        back_up(home, home.path / "saved", print)
    with pytest.raises(BackupError, match="is no directory"):
        back_up(home, tmp_path / "nowhere" / "saved", print)
    with pytest.raises(BackupError, match="holds no installation"):
        back_up(Home(tmp_path / "nothing"), tmp_path / "saved", print)


def test_nothing_is_saved_or_restored_while_another_supervisor_holds_the_home(
    home: Home, evolve: Evolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "saved"
    back_up(home, archive, print)
    monkeypatch.setenv("EVOLVE_HOME", str(home.path))
    with home.lock():
        outcome = evolve("restore", str(archive))
    assert (outcome.exit_code, "already_running" in outcome.err) == (1, True)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: b"no gzip at all", "no archive of `evolve backup`"),
        (lambda: gzip.compress(b"no tar"), "no archive of `evolve backup`"),
        (lambda: _tar(_file("something")), "does not begin with"),
        (lambda: _tar(_manifest(format=99)), "has format 99"),
        (lambda: _tar(_manifest(), _file("../escaped")), "leads out of it"),
        (lambda: _tar(_manifest(), _file("/etc/escaped")), "leads out of it"),
        (lambda: _tar(_manifest(), _link("pg", "/etc"), _file("pg/escaped")), "leads out of it"),
        (lambda: _tar(_manifest(), _link("pg", "/etc/passwd", tarfile.LNKTYPE)), "leads out of it"),
        (lambda: _tar(_manifest(), _device("disk")), "is a device"),
        (lambda: _tar(_manifest(), _file("x", os.urandom(1 << 16)))[:-2000], "is broken"),
    ],
)
def test_a_foreign_broken_or_unsafe_archive_changes_nothing_and_is_named(
    made: Callable[[], bytes], told: str, home: Home, tmp_path: Path
) -> None:
    archive = tmp_path / "given.tar.gz"
    archive.write_bytes(made())
    with pytest.raises(BackupError, match=told) as raised:
        restore(home, archive, print)
    assert str(archive) in raised.value.message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["given.tar.gz", "home"]
    assert (home.pg_data / "PG_VERSION").exists()


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"absent\.tar\.gz: No such file"):
        check_archive(tmp_path / "absent.tar.gz")


Member = tuple[tarfile.TarInfo, bytes]


def _tar(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _manifest(**members: object) -> Member:
    manifest = {
        "format": FORMAT,
        "release": "0.1.0",
        "home": "/x",
        "made_at": datetime.now(UTC).isoformat(),
        **members,
    }
    return _file(MANIFEST, json.dumps(manifest).encode())


def _file(name: str, content: bytes = b"content") -> Member:
    return tarfile.TarInfo(name), content


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def _device(name: str) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.devmajor, info.devminor = tarfile.BLKTYPE, 8, 0
    return info, b""

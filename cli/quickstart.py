"""`evolve quickstart`: the platform up, the example tasks published and run, the result as a table."""

from __future__ import annotations

import sysconfig
import time
import uuid
from pathlib import Path

import typer

from cli.cells import member, members, reward, trial_arm
from cli.client import Client, path
from cli.credentials import find_credentials
from cli.errors import EXIT_FAILED, Refused
from cli.output import say
from cli.stack_commands import say_ready

DATASET = "examples"
CONFIG = "quickstart.yaml"
# What each reference agent must earn on every example.
EXPECTED = {"oracle": 1.0, "nop": 0.0}


def quickstart() -> None:
    """Start the platform, publish the example tasks, run them with `oracle` and `nop`, show the result.

    Exit code 1 unless every task has 1.0 for oracle, its reference solution, and 0.0 for nop.
    """
    from cli.stack import detached

    began = time.monotonic()
    home, ports = detached.start(say)
    examples = find_examples()
    # This home's server, whatever the environment says of another.
    with Client(find_credentials({"EVOLVE_HOME": str(home.path)})) as client:
        version = _publish(client, examples)
        job_id, provider = _run(client, examples, version)
        is_as_expected = _say_verdict(client, job_id, examples)
        why_provider = _why_provider(client, version, provider)
    say_ready(home, ports)
    say(f"provider     {provider}: {why_provider}")
    say(f"job          evolve job show {job_id}")
    say(f"took         {time.monotonic() - began:.0f} s")
    if not is_as_expected:
        raise typer.Exit(EXIT_FAILED)


def find_examples() -> Path:
    """The examples of the source tree, or those that the wheel installed."""
    source = Path(__file__).parents[1] / "examples"
    installed = Path(sysconfig.get_path("data"), "share", "evolve", "examples")
    return source if (source / CONFIG).exists() else installed


def _publish(client: Client, examples: Path) -> str:
    """The version that holds these very files; published when there is none yet."""
    from cli.publishing import content_label, follow_import, publish_directory, report_import

    version = content_label(examples)
    if _is_published(client, version):
        say(f"{DATASET}@{version} is published already")
    else:
        accepted = publish_directory(client, examples, name=DATASET, version=version, org=None)
        report_import(client, follow_import(client, accepted, tell=say))
    return version


def _is_published(client: Client, version: str) -> bool:
    from cli.publishing import read_version

    try:
        detail, _ = read_version(client, DATASET, version)
    except Refused as error:
        if error.status != 404:
            raise
        return False
    found = member(detail, "selected_version")
    return found.get("state") == "READY" and found.get("n_failed_tasks") == 0


def _run(client: Client, examples: Path, version: str) -> tuple[str, str]:
    """The job's id and its provider, once it has ended."""
    from cli.jobspec import read_config
    from cli.watch import watch_job

    body = {**read_config(examples / CONFIG), "datasets": [{"name": DATASET, "version": version}]}
    job = client.post("/api/jobs", body, idempotency_key=str(uuid.uuid4()))
    watch_job(client, str(job["id"]), as_json=False, quiet=False)
    return str(job["id"]), str(job["sandbox_provider"])


def _say_verdict(client: Client, job_id: str, examples: Path) -> bool:
    """Whether every task has what each agent must earn; each reward that differs is named."""
    trials = client.pages(path("/api/jobs/{}/trials", job_id))
    rewards = {(trial.get("task_name"), trial_arm(trial)): trial.get("reward") for trial in trials}
    tasks = sorted(file.parent.name for file in examples.glob("tasks/*/task.toml"))
    # A task that did not build has no trial.
    wrong = [
        (task, agent) for task in tasks for agent in EXPECTED if rewards.get((task, agent)) != EXPECTED[agent]
    ]
    for task, agent in wrong:
        say(f"UNEXPECTED  {task}  {agent}  {reward(rewards.get((task, agent)))}")
    if not wrong:
        say("every task has 1.0 for oracle and 0.0 for nop, as it must")
    return not wrong


def _why_provider(client: Client, version: str, chosen: str) -> str:
    """The server's reason for its default, or what kept the tasks from the default."""
    from cli.publishing import read_version

    offers = members(client.get("/api/meta").get("sandbox_providers"))
    default = next(offer for offer in offers if offer.get("default") is True)
    if default["name"] == chosen:
        return str(default.get("default_reason"))
    _, tasks = read_version(client, DATASET, version)
    verdicts = [member(member(task, "providers"), str(default["name"])) for task in tasks]
    reasons = [str(verdict.get("reason")) for verdict in verdicts if verdict.get("ok") is False]
    return f"{default['name']} cannot run the tasks: {'; '.join(dict.fromkeys(reasons))}"

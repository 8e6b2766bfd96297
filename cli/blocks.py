"""What is said about a job as a whole: its facts, its arms, and a table of rewards by task and arm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cli.cells import (
    UNKNOWN,
    arm_headers,
    arm_name,
    dataset_refs,
    elapsed,
    is_base_image_replaced,
    job_money,
    member,
    members,
    money,
    number,
    reward,
    tally,
    text,
    trial_arm_key,
)
from cli.client import Client, Json, path
from cli.output import print_facts, print_table, say
from cli.patience import read_patiently
from domain.vocabulary import TrialStatus

# More tasks than this are not listed unasked: `evolve job tasks` does.
MOST_LISTED_TASKS = 60
LOCAL_NOTE = "replaced: tasks run on this machine's own system files"


def job_facts(job: Json) -> list[tuple[str, str]]:
    """The job itself, name by name."""
    counts = member(job, "counts")
    return [
        ("job", text(job.get("id"))),
        ("name", text(job.get("job_name"))),
        ("status", text(job.get("status"))),
        ("paused since", text(job.get("paused_at"))),
        ("datasets", dataset_refs(job.get("datasets"))),
        ("agents", ", ".join(_arm(arm) for arm in members(job.get("agents"))) or UNKNOWN),
        ("tasks", text(counts.get("tasks"))),
        ("attempts", text(job.get("n_attempts"))),
        ("trials", f"{text(job.get('n_total_trials'))}: {tally(member(member(job, 'trials'), 'byStatus'))}"),
        ("in parallel", text(job.get("n_concurrent_trials"))),
        ("provider", text(job.get("sandbox_provider") or ("ported" if job.get("upload") else None))),
        ("base image", LOCAL_NOTE if is_base_image_replaced(job) else UNKNOWN),
        ("spent", job_money(job)),
        ("gpu compute (est.)", money(member(job, "stats").get("gpu_cost_usd"))),
        ("worst case", money(job.get("worst_case_spend_usd"))),
        ("org", text(job.get("org"))),
        ("from", ", ".join(_source(source) for source in members(job.get("source_jobs"))) or UNKNOWN),
        ("judged by", _tests(job)),
        ("started", text(job.get("started_at"))),
        ("took", elapsed(job.get("started_at"), job.get("finished_at"))),
        *(("note", text(entry.get("note"))) for entry in members(job.get("build_exclusions"))),
    ]


def _arm(arm: Json) -> str:
    return arm_name(arm.get("name"), arm.get("model_name"), arm.get("reasoning_effort"))


def _source(source: Json) -> str:
    return f"{source.get('action')} of {source.get('job_id')}"


def _tests(job: Json) -> str:
    tests = job.get("x_with_tests")
    return f"the tests of {dataset_refs([tests])}" if tests else UNKNOWN


def print_arms(job: Json) -> None:
    """One line an arm and dataset: trials, errors, mean, pass@k where it can be said."""
    evals = member(member(job, "stats"), "evals")
    rows = [_eval_row(key, member(evals, key)) for key in evals]
    if rows:
        print_table(["arm", "trials", "errors", "mean reward", "pass@k"], rows)


def _eval_row(key: str, group: Json) -> list[str]:
    mean = next((metric.get("mean") for metric in members(group.get("metrics"))), None)
    points = member(group, "pass_at_k")
    chances = "  ".join(f"@{k} {reward(points[k])}" for k in sorted(points, key=int))
    return [key, text(group.get("n_trials")), text(group.get("n_errors")), reward(mean), chances or UNKNOWN]


def final_block(client: Client, job: Json) -> None:
    """What a watch ends with: the job, its arms, and every task's reward by arm unless there are too many."""
    print_facts(job_facts(job))
    say()
    print_arms(job)
    job_id = str(job["id"])
    n_tasks = number(member(job, "counts").get("tasks")) or 0
    if n_tasks > MOST_LISTED_TASKS:
        say(f"{n_tasks:.0f} tasks: list them with `evolve job tasks {job_id}`")
        return
    trials = path("/api/jobs/{}/trials", job_id)
    headers, rows = read_patiently(lambda: reward_table(client.pages(trials)))
    say()
    print_table(headers, rows)


def reward_table(trials: Iterable[Json]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: a task a row, an arm a column, over all datasets in the trials' order."""
    cells: dict[tuple[str, str], dict[str, list[Json]]] = {}
    arms: dict[str, Json] = {}
    for trial in trials:
        arm = trial_arm_key(trial)
        arms.setdefault(arm, trial)
        task = (str(trial.get("source")), str(trial.get("task_name")))
        cells.setdefault(task, {}).setdefault(arm, []).append(trial)
    names = _task_names(list(cells))
    rows = [
        [name, *(_outcome(attempts.get(arm, [])) for arm in arms)]
        for name, attempts in zip(names, cells.values(), strict=True)
    ]
    return ["task", *arm_headers(arms)], rows


def _task_names(tasks: Sequence[tuple[str, str]]) -> list[str]:
    """The dataset is named only where there are several."""
    is_mixed = len({source for source, _ in tasks}) > 1
    return [f"{source}/{task}" if is_mixed else task for source, task in tasks]


def _outcome(attempts: Sequence[Json]) -> str:
    """One attempt's reward or status; of several the mean of those with a reward, and how many those are."""
    if not attempts:
        return UNKNOWN
    scores = [score for trial in attempts if (score := number(trial.get("reward"))) is not None]
    if len(attempts) > 1:
        mean = reward(sum(scores) / len(scores)) if scores else UNKNOWN
        return mean if len(scores) == len(attempts) else f"{mean} ({len(scores)}/{len(attempts)} scored)"
    status = str(attempts[0].get("status"))
    if scores and status == TrialStatus.SCORED:
        return reward(scores[0])
    return f"{status} {reward(scores[0])}" if scores else status

"""What must hold after a storm, whatever went wrong in it. Each check returns what is wrong, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from activities.own_agents import PROCESS as AGENT_BUILD
from domain.jobs import JobPlan, trial_id_of
from tests.chaos.caller import History, MadeJob
from tests.chaos.recount import group_sums, totals_of
from tests.running_platform import RunningPlatform

Rows = list[dict[str, Any]]

JOB_ENDS = ("job.completed", "job.cancelled")
# What may follow what, of one trial: its attempt numbers one after another, each settled once.
_NEXT: Mapping[str | None, frozenset[str | None]] = {
    None: frozenset({"trial.running", "trial.settled"}),
    "trial.running": frozenset({"trial.scoring", "trial.settled"}),
    "trial.scoring": frozenset({"trial.settled"}),
    "trial.settled": frozenset({"trial.retrying", "trial.retry_circuit_broken", None}),
    "trial.retrying": frozenset({"trial.running", "trial.settled", None}),
    "trial.retry_circuit_broken": frozenset({None}),
}

_BESIDE = frozenset({"trial.spend", "trial.waiting"})  # at any moment of an attempt


@dataclass(frozen=True)
class Evidence:
    """What callers saw, what the database holds at the end, and what providers did.

    `executions` counts the commands that were started in fast boxes, by box and name of the command.
    """

    history: History
    jobs: Rows
    trials: dict[str, Rows]
    events: dict[str, Rows]
    groups: dict[str, Rows]
    keys: Rows
    calls: Rows
    credits: Rows
    executions: Counter[str]
    first_balance_nanos: int
    n_upstream_calls: int

    @classmethod
    def gather(
        cls,
        platform: RunningPlatform,
        history: History,
        balance_nanos: int,
        n_upstream_calls: int,
    ) -> Evidence:
        executions = platform.stack.home / "state" / "fast" / "executions"
        return cls(
            history=history,
            jobs=platform.rows("SELECT * FROM jobs ORDER BY started_at, id"),
            trials=_by_job(platform.rows('SELECT * FROM trials ORDER BY job_id, "index"')),
            events=_by_job(platform.rows("SELECT * FROM job_events ORDER BY job_id, seq")),
            groups=_by_job(platform.rows("SELECT * FROM job_groups ORDER BY job_id, evals_key")),
            keys=platform.rows("SELECT * FROM gateway_keys"),
            calls=platform.rows("SELECT * FROM gateway_calls"),
            credits=platform.rows("SELECT * FROM user_credits"),
            executions=Counter(executions.read_text().splitlines()),
            first_balance_nanos=balance_nanos,
            n_upstream_calls=n_upstream_calls,
        )


def _by_job(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(row)
    return found


def every_answer_was_right(evidence: Evidence) -> list[str]:
    return evidence.history.wrong


def every_accepted_job_ends(evidence: Evidence) -> list[str]:
    kept = {job["id"] for job in evidence.jobs}
    wrong = [
        f"job {job['id']} is {job['status']}, finished at {job['finished_at']}"
        for job in evidence.jobs
        if job["status"] not in ("COMPLETED", "CANCELLED") or job["finished_at"] is None
    ]
    for made in evidence.history.jobs.values():
        if made.job_id not in kept and not made.is_delete_asked:
            wrong.append(f"job {made.job_id} was accepted and is gone")
    return wrong


def every_job_has_its_trials(evidence: Evidence) -> list[str]:
    """Tasks × arms × attempts, or as many as a derived job was made of; each over."""
    wrong: list[str] = []
    for job in evidence.jobs:
        plan, trials = JobPlan.model_validate(job["plan"]), evidence.trials[job["id"]]
        if not len(trials) == plan.n_trials == job["n_total_trials"]:
            wrong.append(f"job {job['id']}: {len(trials)} trials, planned {plan.n_trials}")
        if plan.derivation is None and plan.n_trials != plan.n_tasks * len(plan.arms) * plan.n_attempts:
            wrong.append(f"job {job['id']}: {plan.n_trials} is not tasks × arms × attempts")
        if [trial["id"] for trial in trials] != [trial_id_of(job["id"], n) for n in range(len(trials))]:
            wrong.append(f"job {job['id']}: trial ids")
        for trial in trials:
            wrong += _faults_of_end(trial)
    return wrong


def _faults_of_end(trial: dict[str, Any]) -> list[str]:
    name = f"trial {trial['id']}"
    if trial["finished_at"] is None or trial["phase"] is not None or trial["status"] in ("QUEUED", "RUNNING"):
        return [f"{name} is not over: {trial['status']} {trial['phase']} {trial['finished_at']}"]
    wrong: list[str] = []
    if not trial["attempt_number"] == trial["n_retries"] + 1 == len(trial["retries"]) + 1:
        wrong.append(f"{name}: attempt {trial['attempt_number']}, {trial['n_retries']} retries")
    if (trial["status"] == "SCORED") != (trial["result"].get("exception_info") is None):
        wrong.append(f"{name}: {trial['status']} with {trial['result'].get('exception_info')}")
    if [retry["attempt_number"] for retry in trial["retries"]] != list(range(1, trial["attempt_number"])):
        wrong.append(f"{name}: retires {trial['retries']}")
    return wrong


def no_command_runs_twice(evidence: Evidence) -> list[str]:
    """In one attempt number, whoever was killed and whatever was not answered.

    An agent's build is of no attempt, and has no effect but what is taken from its box: one that was cut (its
    trial stopped, its box lost, its provider silent) is begun again, in a fresh box of the revision's name.
    """
    return [
        f"{command} was started {n} times"
        for command, n in evidence.executions.items()
        if n > 1 and command.split()[1] != AGENT_BUILD
    ]


def no_output_is_lost(evidence: Evidence) -> list[str]:
    """A trial that was scored has all that it left, also when the disk was full meanwhile."""
    return [
        f"trial {trial['id']}: {trial['result']['x_left_out']}"
        for trials in evidence.trials.values()
        for trial in trials
        if trial["status"] == "SCORED" and trial["result"].get("x_left_out")
    ]


def events_have_no_gap(evidence: Evidence) -> list[str]:
    """From 1 on, the last one terminal and the only such; a stream told exactly what is stored."""
    wrong: list[str] = []
    for job in evidence.jobs:
        rows = evidence.events[job["id"]]
        types = [row["type"] for row in rows]
        if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)) or job["last_seq"] != len(rows):
            wrong.append(f"job {job['id']}: seqs {[row['seq'] for row in rows]}, last {job['last_seq']}")
        if types[0] != "job.created" or types[-1] not in JOB_ENDS:
            wrong.append(f"job {job['id']}: begins {types[0]}, ends {types[-1]}")
        if any(count > 1 for name, count in Counter(types).items() if name.startswith("job.")):
            wrong.append(f"job {job['id']}: {Counter(types)}")
        made = evidence.history.jobs.get(job["id"])
        stored = [(row["seq"], row["type"], row["payload"]) for row in rows]
        if made is not None and made.events != stored:
            wrong.append(f"job {job['id']}: told {_short(made)}, stored {[row[:2] for row in stored]}")
    for made in evidence.history.jobs.values():
        if [event[0] for event in made.events] != list(range(1, len(made.events) + 1)):
            wrong.append(f"job {made.job_id} was told {_short(made)}")
    return wrong


def _short(made: MadeJob) -> list[tuple[int, str]]:
    return [event[:2] for event in made.events]


def each_attempt_number_settles_once(evidence: Evidence) -> list[str]:
    """And in order: `trial.retrying` follows its settle, a broken circuit its own, and nothing the last.

    A trial that was queued when its whole job was cancelled has no settle of its own: the job's event
    tells their number.
    """
    wrong: list[str] = []
    for job in evidence.jobs:
        story: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in evidence.events[job["id"]]:
            if event["type"].startswith("trial.") and event["type"] not in _BESIDE:
                story[event["payload"]["trial_id"]].append(event)
        n_silent = 0
        for trial in evidence.trials[job["id"]]:
            events = story[trial["id"]]
            wrong += [f"trial {trial['id']}: {fault}" for fault in _faults_of_story(events)]
            n_settles = sum(event["type"] == "trial.settled" for event in events)
            is_silent = trial["status"] == "CANCELLED" and n_settles == trial["n_retries"]
            n_silent += is_silent
            if not is_silent and n_settles != trial["attempt_number"]:
                wrong.append(f"trial {trial['id']}: {n_settles} settles, attempt {trial['attempt_number']}")
            if not is_silent and events and _settled_as(events) != trial["status"]:
                wrong.append(f"trial {trial['id']}: told {_settled_as(events)}, is {trial['status']}")
        told = [e["payload"] for e in evidence.events[job["id"]] if e["type"] == "job.cancelling"]
        if n_silent != sum(payload["cancelled_trials"] for payload in told):
            wrong.append(f"job {job['id']}: {n_silent} trials ended in silence, told {told}")
    return wrong


def _faults_of_story(events: Rows) -> list[str]:
    wrong: list[str] = []
    types: list[str | None] = [event["type"] for event in events]
    for before, after in zip([None, *types], [*types, None], strict=True):
        if types and after not in _NEXT[before]:
            wrong.append(f"{after} after {before}")
    retries = [event["payload"]["retry"] for event in events if event["type"] == "trial.retrying"]
    if retries != list(range(1, len(retries) + 1)):
        wrong.append(f"retries {retries}")
    return wrong


def _settled_as(events: Rows) -> str:
    return next(str(e["payload"]["status"]) for e in reversed(events) if e["type"] == "trial.settled")


def statistics_are_a_recount(evidence: Evidence) -> list[str]:
    wrong: list[str] = []
    for job in evidence.jobs:
        trials = evidence.trials[job["id"]]
        tally = Counter(trial["status"] for trial in trials)
        kept = {status: count for status, count in job["by_status"].items() if count}
        if kept != dict(tally):
            wrong.append(f"job {job['id']}: tally {kept}, trials {dict(tally)}")
        expected = totals_of(trials)
        kept = {name: job["totals"][name] for name in expected}
        if kept != expected:
            wrong.append(f"job {job['id']}: totals {kept}, trials {expected}")
        for group in evidence.groups[job["id"]]:
            of_group = [trial for trial in trials if trial["evals_key"] == group["evals_key"]]
            sums = group_sums(of_group)
            kept = {name: group[name] for name in sums}
            if kept != sums:
                wrong.append(f"job {job['id']} {group['evals_key']}: kept {kept}, trials {sums}")
    return wrong


def money_adds_up(evidence: Evidence) -> list[str]:
    """Keys are the sums of their calls, jobs of their keys, the wallet of all; nothing is held any more."""
    wrong = [f"call {call['id']} is open" for call in evidence.calls if call["status"] == "open"]
    spent, measured = Counter[str](), Counter[str]()
    for call in evidence.calls:
        spent[call["key_id"]] += call["cost_nanos"] or 0
        measured[call["key_id"]] += (call["cost_nanos"] or 0) if call["status"] == "measured" else 0
    of_job = Counter[str]()
    for key in evidence.keys:
        of_job[key["job_id"]] += measured[key["id"]]
        if (key["spent_nanos"], key["held_nanos"], key["n_open"]) != (spent[key["id"]], 0, 0):
            state = (key["spent_nanos"], key["held_nanos"], key["n_open"])
            wrong.append(f"key {key['id']}: {state}, calls {spent[key['id']]}")
    for job in evidence.jobs:
        if (job["totals"]["cost_nanos"] or 0) != of_job[job["id"]]:
            wrong.append(f"job {job['id']}: {job['totals']['cost_nanos']}, calls {of_job[job['id']]}")
    [wallet] = evidence.credits
    gone = evidence.first_balance_nanos - wallet["balance_nanos"]
    if (gone, wallet["held_nanos"]) != (spent.total(), 0):
        wrong.append(f"wallet: {gone} gone, {wallet['held_nanos']} held, calls {spent.total()}")
    return wrong + _faults_of_upstream(evidence)


def _faults_of_upstream(evidence: Evidence) -> list[str]:
    """The provider of models was asked for each measured call, and never without a row in the ledger."""
    statuses = Counter(call["status"] for call in evidence.calls)
    n_measured, n_admitted = statuses["measured"], statuses.total() - statuses["refused"]
    if n_measured <= evidence.n_upstream_calls <= n_admitted:
        return []
    return [f"the provider was asked {evidence.n_upstream_calls} times: {dict(statuses)}"]


def no_key_outlives_its_trial(evidence: Evidence) -> list[str]:
    """Revoked before the trial settled, not by whoever looked for what was left over after it."""
    ends = {trial["id"]: trial["finished_at"] for rows in evidence.trials.values() for trial in rows}
    wrong: list[str] = []
    for key in evidence.keys:
        end = ends.get(key["trial_id"])
        if key["revoked_at"] is None:
            wrong.append(f"key {key['id']} lives")
        elif end is not None and key["revoked_at"] > end:
            wrong.append(f"key {key['id']} was revoked at {key['revoked_at']}, its trial ended at {end}")
    return wrong


CHECKS: tuple[Callable[[Evidence], list[str]], ...] = (
    every_answer_was_right,
    every_accepted_job_ends,
    every_job_has_its_trials,
    no_command_runs_twice,
    no_output_is_lost,
    events_have_no_gap,
    each_attempt_number_settles_once,
    statistics_are_a_recount,
    money_adds_up,
    no_key_outlives_its_trial,
)

"""How values read in tables and blocks: money, rewards, times, tokens. Unknown is `-`, never 0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from cli.client import Json
from domain.vocabulary import SandboxProvider

UNKNOWN = "-"


def text(value: Any) -> str:
    """Any scalar of the wire; null is unknown."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def one_line(value: str) -> str:
    """Safe for a table cell, a TSV field and a terminal: control characters are spelled out."""
    return "".join(character if character.isprintable() else _spelled(character) for character in value)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")


def number(value: Any) -> float | None:
    """A finite number of the wire, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def dollars(amount: float) -> str:
    """Cents above one dollar, at least two significant digits below: never a small amount as zero."""
    if amount == 0 or abs(amount) >= 1:
        return f"${amount:,.2f}"
    digits = max(4, 1 - math.floor(math.log10(abs(amount))))
    return f"${amount:.{digits}f}"


def money(amount: Any, *, is_lower_bound: bool = False) -> str:
    """`$X` when final, `at least $X` while a lower bound, `-` when unmeasured."""
    value = number(amount)
    if value is None:
        return UNKNOWN
    return f"at least {dollars(value)}" if is_lower_bound else dollars(value)


def job_money(job: Json) -> str:
    """A job's spend: a lower bound while settled trials of it are unmeasured."""
    stats = member(job, "stats")
    unmeasured = [number(stats.get(key)) for key in ("n_unmeasured_trials", "n_unmeasured_judge_trials")]
    return money(stats.get("cost_usd"), is_lower_bound=any(unmeasured))


def trial_money(trial: Json) -> str:
    """A trial's agent spend by its lane: settled, provisional, live, or never measured."""
    source = trial.get("spend_source")
    if source == "assumed_cap":
        return UNKNOWN
    settled = member(trial, "agent_result").get("cost_usd")
    if settled is not None:
        return money(settled, is_lower_bound=source != "measured")
    return money(trial.get("live_spent_usd"), is_lower_bound=True)


def judge_money(trial: Json) -> str:
    """A trial's judge spend by its lane."""
    source = trial.get("judge_spend_source")
    if source == "assumed_cap":
        return UNKNOWN
    return money(member(trial, "judge_result").get("cost_usd"), is_lower_bound=source != "measured")


def reward(value: Any) -> str:
    """`1.0`, `0.25`; `-` for no score."""
    score = number(value)
    return UNKNOWN if score is None else str(round(score, 4))


def moment(value: Any) -> datetime | None:
    """An ISO time of the wire."""
    try:
        read = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def elapsed(started_at: Any, finished_at: Any = None, *, now: datetime | None = None) -> str:
    """From one ISO time to another, or to now; `-` before the start."""
    start = moment(started_at)
    if start is None:
        return UNKNOWN
    end = moment(finished_at) or now or datetime.now(UTC)
    return clock((end - start).total_seconds())


def live_phase(trial: Json) -> str:
    """Where a trial is; `agent, silent 6:40` while its agent writes nothing."""
    phase, since = text(trial.get("attempt_phase")), trial.get("x_silent_since")
    return f"{phase}, silent {elapsed(since)}" if since else phase


def clock(seconds: float) -> str:
    """`0:07`, `12:03`, `1:00:05`."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def tally(by_status: Json) -> str:
    """`12 SCORED, 1 BUDGET`: statuses that occur, in the server's order."""
    counted = [f"{count} {status}" for status, count in by_status.items() if count]
    return ", ".join(counted) or UNKNOWN


def dataset_refs(datasets: Any) -> str:
    """`name@version, …`."""
    return ", ".join(_dataset_ref(dataset) for dataset in members(datasets)) or UNKNOWN


def _dataset_ref(dataset: Json) -> str:
    version = dataset.get("version")
    return f"{dataset.get('name')}@{version}" if version else str(dataset.get("name"))


def arm_name(agent: Any, model: Any = None, effort: Any = None) -> str:
    """`codex gpt-6 high`; agents that call no model go by their own name."""
    return " ".join(str(part) for part in (agent, model, effort) if part) or UNKNOWN


def trial_arm(trial: Json) -> str:
    """The arm that a trial ran as."""
    info = member(trial, "agent_info")
    return arm_name(info.get("name"), member(info, "model_info").get("name"), info.get("reasoning_effort"))


def trial_arm_key(trial: Json) -> str:
    """What tells the trial's arm from every other of its job, on all datasets: as the job's arms are listed.

    The arm's name with a server that does not say it.
    """
    key = trial.get("x_evals_key")
    return str(key).removesuffix(f"__{trial.get('source')}") if key else trial_arm(trial)


def arm_headers(trials: Mapping[str, Json]) -> list[str]:
    """A header for each arm, from a trial of it by `trial_arm_key`: its name, and where others have the same
    one, in what it differs."""
    names = {key: trial_arm(trial) for key, trial in trials.items()}
    shared = {name for name, n in Counter(names.values()).items() if n > 1}
    return [_told_apart(name, key) if name in shared else name for key, name in names.items()]


def _told_apart(name: str, key: str) -> str:
    """The key repeats the name before it says more; the one of several that says no more is the name."""
    more = key.removeprefix(name.replace(" ", "__")).removeprefix("__")
    return f"{name} ({more})" if more else name


def tokens(result: Json) -> str:
    """`1200 in (800 cached), 90 out`."""
    counts: Sequence[Any] = [result.get(f"n_{kind}_tokens") for kind in ("input", "cache", "output")]
    if all(count is None for count in counts):
        return UNKNOWN
    given, cached, made = (text(count) for count in counts)
    return f"{given} in ({cached} cached), {made} out"


def is_base_image_replaced(ran: Json) -> bool:
    """Whether a job's or trial's boxes stood on the host's own system files: `local` always does."""
    return ran.get("base_image_replaced") is True or ran.get("sandbox_provider") == SandboxProvider.LOCAL


def member(value: Json, key: str) -> Json:
    """An object member, `{}` when it is null or no object."""
    found: Any = value.get(key)
    return cast("Json", found) if isinstance(found, dict) else {}


def members(value: Any) -> list[Json]:
    """The objects of an array of the wire."""
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[Any]", value) if isinstance(item, dict)]

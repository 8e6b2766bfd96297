"""Which job or trial a word on the command line means: a whole id, the start of one, or `last`.

A whole id is taken as it is, without a question. So is what can be neither: the server then refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from cli.client import Client, Json, connect, path
from cli.errors import CliError

LAST = "last"
SHORTEST_PREFIX = 4
WHOLE_ID = 36
PREFIX = re.compile(rf"[0-9a-f-]{{{SHORTEST_PREFIX},{WHOLE_ID - 1}}}")
# A trial is looked for among those of so many jobs, the newest first.
JOBS_LOOKED_AT = 20
MOST_NAMED = 5


class AmbiguousId(CliError):
    """Several have an id that begins so; the message names them."""

    code = "ambiguous_id"


def job_of(word: str) -> str:
    """The id of the job that `word` means. Raises `AmbiguousId`, or `CliError` when there is none."""
    if not _is_short(word):
        return word
    with connect() as client:
        if word == LAST:
            return str(_newest_job(client)["id"])
        return _only(word, "job", client.pages("/api/jobs"))


def trial_of(word: str) -> str:
    """The id of the trial that `word` means; `last` is the one of the newest job that began last."""
    if not _is_short(word):
        return word
    with connect() as client:
        if word == LAST:
            job = _newest_job(client)
            trials = list(_trials(client, job))
            if not trials:
                raise CliError(f"last: job {job['id']} has no trials", code="trial_not_found")
            return str(max(trials, key=lambda trial: str(trial.get("started_at") or ""))["id"])
        newest = islice(client.pages("/api/jobs"), JOBS_LOOKED_AT)
        return _only(word, "trial", (trial for job in newest for trial in _trials(client, job)))


def _is_short(word: str) -> bool:
    return word == LAST or PREFIX.fullmatch(word) is not None


def _newest_job(client: Client) -> Json:
    job = next(iter(client.pages("/api/jobs", {"limit": 1})), None)
    if job is None:
        raise CliError("last: you have no jobs", code="job_not_found")
    return job


def _trials(client: Client, job: Json) -> Iterable[Json]:
    return client.pages(path("/api/jobs/{}/trials", str(job["id"])))


def _only(word: str, noun: str, candidates: Iterable[Json]) -> str:
    found = [str(each["id"]) for each in candidates if str(each["id"]).startswith(word)]
    if len(found) > 1:
        named = ", ".join(found[:MOST_NAMED]) + (", …" if len(found) > MOST_NAMED else "")
        raise AmbiguousId(f"{word}: {len(found)} {noun}s begin so: {named}")
    if not found:
        where = f" of your last {JOBS_LOOKED_AT} jobs" if noun == "trial" else " of yours"
        raise CliError(f"{word}: no {noun}{where} begins so; give its whole id", code=f"{noun}_not_found")
    return found[0]

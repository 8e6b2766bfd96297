"""Makes a storm's calls against a platform whose processes come and go, and follows every job's events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from domain.jobs import trial_id_of
from tests.chaos.calls import HAS_A_KEY, MAKES_A_JOB, Call

Json = dict[str, Any]

PATIENCE_SEC = 120.0
AGAIN_SEC = 0.3
LIVE_STATUSES = "QUEUED,RUNNING,SCORING"
AT_ONCE = 12
IS_REGRADE = "feature_unsupported"  # it has no agent to run again
# How a call may be answered beside well: the job was deleted, has not ended, has nothing to do again.
FINE_CODES: dict[str, frozenset[str]] = {
    "create": frozenset(),
    "cancel": frozenset({"job_not_found", "concurrent_update"}),
    "pause": frozenset({"job_not_found"}),
    "unpause": frozenset({"job_not_found"}),
    "stop": frozenset(),
    "stop_dataset": frozenset({"job_not_found"}),
    "resume": frozenset({"job_not_found", "job_not_terminal", "no_failed_trials", IS_REGRADE}),
    "retry": frozenset(
        {
            "job_not_found",
            "job_not_terminal",
            "no_failed_trials",
            "trial_not_settled",
            "trial_not_found",
            IS_REGRADE,
        }
    ),
    "retry_trial": frozenset({"trial_not_found", "trial_not_settled", IS_REGRADE}),
    "regrade": frozenset({"job_not_found", "job_not_terminal", "no_regradable_trials"}),
    "delete": frozenset({"job_not_found", "job_not_terminal"}),
    "read": frozenset({"job_not_found"}),
    "list_trials": frozenset({"job_not_found"}),
    "download": frozenset({"job_not_found", "job_not_terminal"}),
}
# Asked again: nobody was there to judge it.
_AWAY_STATUSES = frozenset({429, 502, 503, 504})


@dataclass
class MadeJob:
    """A job that was accepted, and what its stream told until it ended or was deleted."""

    job_id: str
    n_trials: int
    events: list[tuple[int, str, Json]] = field(default_factory=list[tuple[int, str, Json]])
    is_stream_over: bool = False
    is_delete_asked: bool = False


@dataclass
class History:
    """What was asked and answered. `wrong` says what no fault excuses."""

    answers: Counter[str] = field(default_factory=Counter[str])
    jobs: dict[str, MadeJob] = field(default_factory=dict[str, MadeJob])
    wrong: list[str] = field(default_factory=list[str])
    log: list[str] = field(default_factory=list[str])
    n_asked_again: int = 0

    @property
    def n_calls(self) -> int:
        return sum(self.answers.values())


class Caller:
    """Calls over HTTP with the credentials of the installation's owner."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.history = History()
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(25.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
        )
        self._made: dict[int, asyncio.Future[MadeJob | None]] = {}
        self._followers: list[asyncio.Task[None]] = []
        self._room = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        await self._http.aclose()

    async def make(self, call: Call) -> None:
        """Make a call, once for whoever reads the answer, however often it has to be sent."""
        if call.made is not None:
            self._made[call.made] = asyncio.get_running_loop().create_future()
        job = None if call.job is None else await self._made[call.job]
        made: MadeJob | None = None
        try:
            if job is not None or call.verb == "create":
                async with self._room:
                    made = await self._make(call, job)
        finally:
            if call.made is not None:
                # What is said of a job that was refused is said of the one it was to be made of.
                self._made[call.made].set_result(made or job)

    async def _make(self, call: Call, job: MadeJob | None) -> MadeJob | None:
        if call.verb == "delete" and job is not None:
            job.is_delete_asked = True
        sent = [self._send(call, job) for _ in range(2 if call.is_doubled else 1)]
        answers = await asyncio.gather(*sent)
        made = [answer for answer in answers if answer is not None]
        if len({answer["id"] for answer in made}) > 1:
            self.history.wrong.append(f"one key made two jobs: {call}")
        return self._remember(made[0]) if made else None

    async def _send(self, call: Call, job: MadeJob | None) -> Json | None:
        """The job that it made, if it is a call that makes one."""
        if call.verb == "stop_dataset":
            assert job is not None
            await self._stop_dataset(call, job)
            return None
        method, route, body = _request(call, job)
        answer = await self._ask(call, method, route, body)
        return None if answer is None else self._note(call, answer, route)

    async def _stop_dataset(self, call: Call, job: MadeJob) -> None:
        """As `evolve job stop --dataset`: the live trials of the dataset are listed, and then stopped."""
        listing = f"/api/jobs/{job.job_id}/trials"
        route = f"{listing}?limit=100&dataset={call.dataset}&status={LIVE_STATUSES}"
        listed = await self._ask(call, "GET", route, None)
        if listed is None:
            return
        if listed.status_code >= 400 or not listed.json()["items"]:
            self._note(call, listed, route)
            return
        trials = listed.json()["items"]
        if others := [each for each in trials if each["source"] != call.dataset]:
            self.history.wrong.append(f"{call} was told of {others}")
        body = {"trial_ids": [each["id"] for each in trials]}
        answer = await self._ask(call, "POST", "/api/trials/stop", body)
        if answer is not None:
            self._note(call, answer, f"{len(trials)} trials of {call.dataset} in {listing}")

    async def _ask(self, call: Call, method: str, route: str, body: Json | None) -> httpx.Response | None:
        """The answer, however often it has to be asked; None, and it is wrong, when patience ends."""
        headers = {"Idempotency-Key": f"call-{call.number}"} if call.verb in HAS_A_KEY else {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SEC
        while True:
            answer = await self._exchange(method, route, body, headers)
            if answer is not None:
                return answer
            if loop.time() > deadline:
                self.history.wrong.append(f"never answered: {call}")
                return None
            self.history.n_asked_again += 1
            await asyncio.sleep(AGAIN_SEC)

    async def _exchange(self, method: str, route: str, body: Json | None, headers: Json) -> Any:
        try:
            answer = await self._http.request(method, route, json=body, headers=headers)
        except httpx.TransportError:
            return None
        return None if answer.status_code in _AWAY_STATUSES else answer

    def _note(self, call: Call, answer: httpx.Response, route: str) -> Json | None:
        code = "ok" if answer.status_code < 400 else _code(answer)
        self.history.answers[f"{call.verb} {code}"] += 1
        self.history.log.append(f"{call.number} {call.verb} {route} {answer.status_code} {code}")
        if code != "ok" and code not in FINE_CODES[call.verb]:
            self.history.wrong.append(f"{call} was answered {answer.status_code} {answer.text[:500]}")
        return answer.json() if code == "ok" and call.verb in MAKES_A_JOB else None

    def _remember(self, document: Json) -> MadeJob:
        job_id = str(document["id"])
        if job_id not in self.history.jobs:
            made = MadeJob(job_id, document["n_total_trials"])
            self.history.jobs[job_id] = made
            self._followers.append(asyncio.create_task(self._follow(made)))
        return self.history.jobs[job_id]

    async def _follow(self, job: MadeJob) -> None:
        """Read the job's events, from where an interrupted stream stopped, to the terminal one."""
        while not job.is_stream_over:
            with contextlib.suppress(httpx.TransportError):
                await self._read_stream(job)
            await asyncio.sleep(AGAIN_SEC)

    async def _read_stream(self, job: MadeJob) -> None:
        headers = {"Last-Event-ID": str(job.events[-1][0])} if job.events else {}
        async with self._http.stream("GET", f"/api/jobs/{job.job_id}/events", headers=headers) as answer:
            if answer.status_code == 404:
                job.is_stream_over = True
                return
            if answer.status_code != 200:
                return
            frame: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    frame[name] = value
                elif "id" in frame:
                    self._take(job, frame)
                    frame = {}

    def _take(self, job: MadeJob, frame: dict[str, str]) -> None:
        job.events.append((int(frame["id"]), frame["event"], json.loads(frame["data"])))
        job.is_stream_over = frame["event"] in ("job.completed", "job.cancelled", "job.failed")


def _request(call: Call, job: MadeJob | None) -> tuple[str, str, Json | None]:
    """Method, route and body."""
    if job is None:
        return "POST", "/api/jobs", call.body
    of_job = f"/api/jobs/{job.job_id}"
    trial_ids = [trial_id_of(job.job_id, int(pick * job.n_trials)) for pick in call.picks]
    body = call.body
    if "trial_ids" in body:
        body = {"trial_ids": sorted(set(trial_ids))}
    match call.verb:
        case "stop":
            return "POST", "/api/trials/stop", {"trial_ids": trial_ids}
        case "retry_trial":
            return "POST", f"/api/trials/{trial_ids[0]}/retry", {}
        case "delete":
            return "DELETE", of_job, None
        case "read":
            return "GET", of_job, None
        case "list_trials":
            return "GET", f"{of_job}/trials?limit=100", None
        case "download":
            return "GET", f"{of_job}/download", None
        case _:
            return "POST", f"{of_job}/{call.verb}", body


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError):
        return str(answer.status_code)

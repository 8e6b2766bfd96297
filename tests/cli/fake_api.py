"""A fake of the API in this process: it speaks the wire, runs nothing, and records what it was asked.

Tests of the CLI put state in, script failures, and look at `requests`. The real API has tests of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]
KEY = "evk_test"


@dataclass
class Request:
    """One recorded request; `query` holds single values."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.body)


@dataclass
class Answer:
    """A response. `cut` closes the connection without an end."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def answer_json(value: Json, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def refusal(status: int, code: str, message: str, **members: Any) -> Answer:
    return answer_json({"error": {"code": code, "message": message, **members}}, status)


def archive(content: bytes, *, digest: str | None = None) -> Answer:
    stated = digest or hashlib.sha256(content).hexdigest()
    return Answer(200, content, {"Content-Type": "application/gzip", "x-package-sha256": stated})


def job(job_id: str = "job-1", **members: Any) -> Json:
    """A wire Job that ran eight tasks with one arm; members override."""
    return {
        "kind": "job",
        "id": job_id,
        "job_name": "nightly",
        "status": "COMPLETED",
        "datasets": [{"name": "examples", "version": "1"}],
        "agents": [{"name": "oracle", "model_name": None, "reasoning_effort": None}],
        "n_attempts": 1,
        "n_concurrent_trials": 4,
        "max_trial_spend_usd": 200.0,
        "worst_case_spend_usd": 400.0,
        "sandbox_provider": "local",
        "org": "me",
        "counts": {"agents": 1, "tasks": 2},
        "n_total_trials": 2,
        "trials": {"total": 2, "byStatus": {"QUEUED": 0, "SCORED": 2}},
        "stats": {"cost_usd": None, "n_unmeasured_trials": 0, "evals": {}},
        "build_exclusions": [],
        "source_jobs": [],
        "started_at": "2026-03-01T10:00:00.000Z",
        "finished_at": "2026-03-01T10:01:05.000Z",
        **members,
    }


def trial(trial_id: str, task_name: str = "hello-file", **members: Any) -> Json:
    """A wire Trial, scored 1.0 by the oracle."""
    return {
        "id": trial_id,
        "job_id": "job-1",
        "task_name": task_name,
        "source": "examples",
        "agent_info": {
            "name": "oracle",
            "version": None,
            "model_info": {"name": None},
            "reasoning_effort": None,
        },
        "attempt": 1,
        "status": "SCORED",
        "reward": 1.0,
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        "agent_result": None,
        "judge_result": None,
        "spend_source": None,
        "attempt_phase": None,
        "n_retries": 0,
        "retries": [],
        "started_at": "2026-03-01T10:00:00.000Z",
        "finished_at": "2026-03-01T10:00:07.000Z",
        **members,
    }


class FakeApi:
    """State in, requests out. Start with `serving()`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.scripted: defaultdict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self.agents: list[Json] = []
        self.jobs: dict[str, Json] = {}
        self.trials: dict[str, Json] = {}
        self.datasets: dict[str, Json] = {}
        self.imports: dict[str, list[Json]] = {}
        self.events: dict[str, list[tuple[int, str, Json]]] = {}
        self.events_per_connection: int | None = None
        self.ends_streams = True
        self.traces: dict[str, list[Json]] = {}
        self.matches: list[Json] = []
        self.artifacts: dict[tuple[str, str], Json] = {}
        self.archives: dict[str, Answer] = {}
        self.upload = b""
        self.page_size = 100
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def script(self, method: str, path: str, *answers: Answer) -> None:
        """The next answers of a route, before its own behaviour."""
        self.scripted[method, path].extend(answers)

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                query = {name: values[-1] for name, values in parse_qs(url.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, url.path, query, headers, body)
                api.requests.append(request)
                if (
                    re.fullmatch("/api/jobs/[^/]+/events", url.path)
                    and not api.scripted[self.command, url.path]
                ):
                    self.stream(request)
                else:
                    self.answer(api.answer(request))

            do_GET = do_POST = do_DELETE = do_PATCH = do_HEAD = handle_any

            def answer(self, answer: Answer) -> None:
                if answer.cut:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in answer.headers and answer.status != 204:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            def stream(self, request: Request) -> None:
                job_id = request.path.split("/")[3]
                after = int(request.headers.get("last-event-id", -1))
                events = [event for event in api.events.get(job_id, []) if event[0] > after]
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(b": here\n\n")
                for seq, kind, data in events[: api.events_per_connection]:
                    self.wfile.write(f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode())
                    self.wfile.flush()
                if not api.ends_streams:
                    threading.Event().wait(30)
                self.close_connection = True

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        return Handler

    def answer(self, request: Request) -> Answer:
        script = self.scripted[request.method, request.path]
        if script:
            return script.popleft()
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refusal(401, "invalid_api_key", "Unknown API key.")
        for method, pattern, behave in self._routes():
            match = re.fullmatch(pattern, request.path)
            if match and method == request.method:
                return behave(request, *map(unquote, match.groups()))
        return refusal(404, "not_found", f"No route {request.method} {request.path}.")

    def _routes(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        one = "([^/]+)"
        return [
            ("GET", "/api/auth/status", self._auth),
            ("GET", "/api/meta", lambda _: answer_json({"agents": self.agents})),
            ("GET", "/api/jobs", lambda request: self._page(request, list(self.jobs.values()))),
            ("POST", "/api/jobs", self._create_job),
            ("GET", f"/api/jobs/{one}", lambda _, key: self._one(self.jobs, key, "job_not_found")),
            ("DELETE", f"/api/jobs/{one}", self._delete_job),
            ("POST", f"/api/jobs/{one}/cancel", self._cancel),
            ("GET", f"/api/jobs/{one}/trials", self._job_trials),
            ("GET", f"/api/jobs/{one}/tasks", self._job_tasks),
            ("GET", f"/api/jobs/{one}/grep", lambda request, _: self._page(request, self.matches)),
            ("POST", "/api/trials/stop", self._stop),
            ("GET", f"/api/trials/{one}", lambda _, key: self._one(self.trials, key, "trial_not_found")),
            ("GET", f"/api/trials/{one}/trace", self._trace),
            ("GET", f"/api/(?:jobs|trials|datasets)/{one}/download", lambda _, key: self.archives[key]),
            ("GET", "/api/datasets", lambda request: self._page(request, list(self.datasets.values()))),
            ("POST", "/api/datasets/publish", self._publish),
            (
                "POST",
                "/api/datasets/publish/uploads",
                lambda _: answer_json({"id": "up-1", "import_id": None}),
            ),
            ("HEAD", "/api/datasets/publish/uploads/up-1", self._offset),
            ("PATCH", "/api/datasets/publish/uploads/up-1", self._chunk),
            ("POST", "/api/datasets/publish/uploads/up-1/complete", self._publish),
            ("GET", "/api/datasets/imports", self._list_imports),
            ("GET", f"/api/datasets/imports/{one}", self._import),
            (
                "GET",
                f"/api/datasets/{one}",
                lambda _, key: self._one(self.datasets, key, "dataset_not_found"),
            ),
        ]

    def _auth(self, _: Request) -> Answer:
        key = {"id": "key-1", "label": "laptop", "created_at": "2026-01-01T00:00:00Z", "last_used_at": None}
        return answer_json({"user_id": "u-1", "email": "robin@example.com", "key": key})

    def _page(self, request: Request, items: list[Json]) -> Answer:
        start = int(request.query.get("cursor", 0))
        end = start + self.page_size
        more = end < len(items)
        return answer_json(
            {"items": items[start:end], "nextCursor": str(end) if more else None, "hasMore": more}
        )

    def _one(self, found: dict[str, Json], key: str, code: str) -> Answer:
        return answer_json(found[key]) if key in found else refusal(404, code, f"No {key} here.")

    def _create_job(self, request: Request) -> Answer:
        created = job("job-1", status="QUEUED", job_name=request.json.get("job_name", "generated"))
        self.jobs.setdefault("job-1", created)
        return answer_json(self.jobs["job-1"], 201)

    def _delete_job(self, _: Request, key: str) -> Answer:
        del self.jobs[key]
        return answer_json({"job_id": key, "trials_deleted": 2, "analyses_deleted": 0})

    def _cancel(self, _: Request, key: str) -> Answer:
        self.jobs[key]["status"] = "CANCELLING"
        return answer_json(self.jobs[key])

    def _job_trials(self, request: Request, key: str) -> Answer:
        wanted = request.query.get("status")
        source = request.query.get("dataset")
        rows = [row for row in self.trials.values() if row["job_id"] == key]
        rows = [row for row in rows if wanted is None or row["status"] in wanted.split(",")]
        return self._page(request, [row for row in rows if source in (None, row["source"])])

    def _job_tasks(self, request: Request, key: str) -> Answer:
        rows = [
            {
                "task_name": row["task_name"],
                "source": row["source"],
                "trials": {"total": 1, "byStatus": {row["status"]: 1}},
                "mean_reward": row["reward"],
                "cost_usd": None,
                "check": None,
            }
            for row in self.trials.values()
            if row["job_id"] == key
        ]
        return self._page(request, rows)

    def _stop(self, request: Request) -> Answer:
        lists: dict[str, list[Any]] = {
            "stopped": [],
            "stopped_analyses": [],
            "already_terminal": [],
            "not_found": [],
        }
        for trial_id in request.json["trial_ids"]:
            known = self.trials.get(trial_id)
            if known is None:
                lists["not_found"].append(trial_id)
            elif known["status"] in ("QUEUED", "RUNNING", "SCORING"):
                known["status"] = "CANCELLED"
                lists["stopped"].append(known)
            else:
                lists["already_terminal"].append(trial_id)
        return answer_json(lists)

    def _trace(self, request: Request, key: str) -> Answer:
        if "stream" in request.query:
            return answer_json(self.artifacts.get((key, request.query["stream"]), {"log": None}))
        after = int(request.query.get("cursor", -1))
        events = [event for event in self.traces.get(key, []) if event["seq"] > after]
        page = events[: self.page_size]
        cursor = str(page[-1]["seq"]) if len(events) > len(page) else None
        return answer_json({"items": page, "nextCursor": cursor, "hasMore": cursor is not None})

    def _publish(self, request: Request) -> Answer:
        return answer_json(self.imports["import-1"][0], 202)

    def _offset(self, _: Request) -> Answer:
        return Answer(200, b"", {"Upload-Offset": str(len(self.upload))})

    def _chunk(self, request: Request) -> Answer:
        if int(request.headers["upload-offset"]) != len(self.upload):
            return refusal(409, "upload_offset_mismatch", "Stale offset.")
        self.upload += request.body
        return Answer(204, b"", {"Upload-Offset": str(len(self.upload))})

    def _list_imports(self, request: Request) -> Answer:
        latest = [
            states[0] for states in self.imports.values() if states[0]["name"] == request.query["dataset"]
        ]
        return self._page(request, latest)

    def _import(self, _: Request, key: str) -> Answer:
        """Each read shows the next state; the last one stays."""
        states = self.imports[key]
        return answer_json(states.pop(0) if len(states) > 1 else states[0])

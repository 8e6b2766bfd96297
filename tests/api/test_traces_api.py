from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evolve import EvolveAPIError
from evolve.hosted import gateway_usage_of

from domain.trials import StepResult, VerifierResult
from domain.vocabulary import AttemptPhase
from store import traces
from store.fences import Fence
from store.record import PhaseChange, enter_phase
from store.streams import add_trace_events, append_chunk
from tests.api.conftest import Api
from tests.api.seeding import start_trial
from tests.api.test_trials_api import keep, new_trials


async def test_a_trace_is_paged_filtered_and_tailed(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    rows = [(seq, "tool_call" if seq % 2 else "plan", {"text": f"Step {seq}"}) for seq in range(1, 8)]
    await add_trace_events(api.db, trial_id, 1, rows)
    trials = api.published().trials
    assert [event.seq async for event in trials.trace_events(trial_id, limit=3)] == list(range(1, 8))
    page = await trials.trace(trial_id, limit=3)
    assert page.next_cursor == "3"
    assert [event.seq for event in (await trials.trace(trial_id, cursor="5")).items] == [6, 7]
    assert (await trials.trace(trial_id, cursor="7")).next_cursor is None
    assert [event.seq for event in (await trials.trace(trial_id, type="plan")).items] == [2, 4, 6]
    assert [event.seq for event in (await trials.trace(trial_id, tail=2)).items] == [6, 7]
    assert [event.seq for event in (await trials.trace(trial_id, tail=2, type="plan")).items] == [4, 6]
    tailed = [event.seq async for event in trials.trace_events(trial_id, tail=5, grep="step", limit=2)]
    assert tailed == [3, 4, 5, 6, 7]


async def test_a_pattern_is_matched_in_type_and_data_whatever_the_case(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    rows = [(1, "plan", {"text": "Step 5"}), (2, "error", {"message": "größer"}), (3, "usage", {"a": None})]
    await add_trace_events(api.db, trial_id, 1, rows)
    trials = api.published().trials
    for pattern, expected in (
        ("sTEP [5-6]", [1]),
        ("ERROR", [2]),
        ("gr.ßer", [2]),
        ("null", [3]),
        ("nowhere", []),
    ):
        found = await trials.trace(trial_id, grep=pattern)
        assert ([event.seq for event in found.items], found.next_cursor) == (expected, None), pattern


async def test_a_page_of_large_events_ends_early(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traces, "MAX_PAGE_BYTES", 2_000)
    trial_id = (await new_trials(api))[0]["id"]
    rows = [
        (seq, "tool_call_update", {"text": str(seq) * size}) for seq, size in enumerate((900, 900, 5_000, 9))
    ]
    await add_trace_events(api.db, trial_id, 1, rows)
    trials = api.published().trials
    pages: list[list[int]] = []
    cursor = None
    while True:
        page = await trials.trace(trial_id, cursor=cursor)
        pages.append([event.seq for event in page.items])
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert pages == [[0, 1, 2], [3]]


async def test_gateway_lines_are_recognised_after_the_harness(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    own = {"update": {"sessionUpdate": "usage", "scope": "call", "usage": {"promptTokens": 1}}}
    metered: dict[str, Any] = {"update": {**own["update"], "source": "gateway"}, "model": "opus"}
    await add_trace_events(
        api.db, trial_id, 1, [(traces.GATEWAY_SEQ_BASE, "usage", metered), (2, "usage", own)]
    )
    events = (await api.published().trials.trace(trial_id)).items
    assert [gateway_usage_of(event) is not None for event in events] == [False, True]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("cursor=x", "invalid_cursor", "cursor"),
        ("limit=1001", "invalid_limit", "limit"),
        ("tail=0", "invalid_input", "tail"),
        ("tail=10001", "invalid_input", "tail"),
        ("grep=(", "invalid_input", "grep"),
        ("grep=", "invalid_input", "grep"),
        ("grep=" + "x" * 513, "invalid_input", "grep"),
        ("type=" + "x" * 101, "invalid_input", "type"),
        ("stream=weather", "invalid_format", "stream"),
        ("stream=trajectory", "not_found", None),
    ],
)
async def test_a_bad_trace_query_is_refused(api: Api, query: str, code: str, param: str | None):
    trial_id = (await new_trials(api))[0]["id"]
    error = (await api.http.get(f"/api/trials/{trial_id}/trace?{query}")).json()["error"]
    assert (error["code"], error.get("param")) == (code, param)


async def test_a_job_is_searched_over_all_its_trials(api: Api):
    rows = sorted(await new_trials(api), key=lambda row: row["id"])
    for row, n_hits in zip(rows, (7, 0, 1), strict=True):
        events = [(seq, "tool_call", {"text": "Permission denied"}) for seq in range(1, n_hits + 1)]
        await add_trace_events(api.db, row["id"], 1, [*events, (90, "plan", {"text": "fine"})])
    jobs, job_id = api.published().jobs, rows[0]["job_id"]
    found = await jobs.grep(job_id, "permission.DENIED")
    assert [(g.trial_id, g.match_count, [e.seq for e in g.events]) for g in found.items] == [
        (rows[0]["id"], 7, [1, 2, 3, 4, 5]),
        (rows[2]["id"], 1, [1]),
    ]
    assert [group.task_name for group in found.items] == [rows[0]["task_name"], rows[2]["task_name"]]
    assert (found.next_cursor, found.has_more) == (None, False)
    first = await jobs.grep(job_id, "permission", limit=1)
    assert (first.next_cursor, len(first.items)) == (rows[0]["id"], 1)
    rest = await jobs.grep(job_id, "permission", limit=1, cursor=first.next_cursor)
    assert ([group.trial_id for group in rest.items], rest.next_cursor) == ([rows[2]["id"]], None)
    assert len((await jobs.grep(job_id, ".", type="plan")).items) == 3
    assert (await jobs.grep(job_id, "nowhere")).items == []


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("", "invalid_input", "q"),
        ("q=(", "invalid_input", "q"),
        ("q=a&type=" + "x" * 101, "invalid_input", "type"),
        ("q=a&cursor=", "invalid_cursor", "cursor"),
        ("q=a&limit=0", "invalid_limit", "limit"),
    ],
)
async def test_a_bad_job_search_is_refused(api: Api, query: str, code: str, param: str):
    job_id = (await new_trials(api))[0]["job_id"]
    error = (await api.http.get(f"/api/jobs/{job_id}/grep?{query}")).json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    with pytest.raises(EvolveAPIError) as caught:
        await api.published().jobs.grep("no-such-job", "x")
    assert (caught.value.code, caught.value.status) == ("job_not_found", 404)


async def test_artifacts_are_the_kept_files(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    await keep(api, trial_id, {"verifier/test-stdout.txt": b"ok\xff", "agent/oracle.txt": b"hello"})
    await keep(api, trial_id, {"agent/agent-home.json": b"{}", "agent/.codex/log": b"text"})
    await keep(api, trial_id, {"agent/.codex/blob": b"\xff", "agent/sessions/copy": b"text"})
    trials = api.published().trials
    assert (await trials.artifact(trial_id, "verifier")) == "ok\ufffd"
    assert (await trials.artifact(trial_id, "trace-stdout")) == "hello"
    assert (await trials.artifact(trial_id, "trace-stderr")) is None
    assert (await trials.artifact(trial_id, "trace-atif")) is None
    home = await trials.artifact(trial_id, "agent-home")
    assert home == {"/agent-home.json": "{}", "/.codex/log": "text"}
    await keep(api, trial_id, {"agent/trajectory.json": b'{"schema_version": "ATIF-v1.7"}'})
    assert (await trials.artifact(trial_id, "trace-atif")) == '{"schema_version": "ATIF-v1.7"}'


async def test_a_running_trial_shows_its_output_so_far(api: Api):
    row = (await new_trials(api, is_run=False))[0]
    fence: Fence = await start_trial(api.db, row)
    await append_chunk(api.db, fence, "agent/stdout", 0, b"hel")
    await append_chunk(api.db, fence, "agent/stdout", 3, b"lo")
    trials = api.published().trials
    assert (await trials.artifact(row["id"], "trace-stdout")) == "hello"
    assert (await trials.get(row["id"])).session_ref is None
    with pytest.raises(EvolveAPIError) as caught:
        await trials.download(row["id"])
    assert (caught.value.code, caught.value.status) == ("trial_not_settled", 409)


async def test_a_multi_step_trial_shows_its_steps_and_the_newest_ones_output(api: Api):
    row = (await new_trials(api, is_run=False))[0]
    fence = await start_trial(api.db, row)
    scored = StepResult(step_name="one", verifier_result=VerifierResult(rewards={"reward": 0.5}))
    steps = [step.model_dump(mode="json") for step in (scored, StepResult(step_name="two"))]
    await enter_phase(api.db, replace(fence, step=1), PhaseChange(members={"step_results": steps}))
    await append_chunk(api.db, replace(fence, step=1), "steps/two/agent/stdout", 0, b"hello")
    trials = api.published().trials
    shown = (await trials.get(row["id"])).step_results
    assert shown is not None
    assert [step["step_name"] for step in shown] == ["one", "two"]
    assert shown[0]["verifier_result"] == {"rewards": {"reward": 0.5}}
    assert (await trials.artifact(row["id"], "trace-stdout")) == "hello"
    await keep(api, row["id"], {"steps/two/verifier/test-stdout.txt": b"tested"})
    assert (await trials.artifact(row["id"], "verifier")) == "tested"


async def test_output_that_a_retry_retired_is_withheld_and_says_so(api: Api):
    trial_id = (await new_trials(api))[0]["id"]
    await keep(api, trial_id, {"agent/oracle.txt": b"of the first attempt"})
    await (await api.db.pool()).execute("UPDATE trials SET attempt_number = 2 WHERE id = $1", trial_id)
    trials = api.published().trials
    withheld = await trials.artifact(trial_id, "trace-stdout", with_reason=True)
    assert withheld.log is None
    assert withheld.reason == "attempt number 1 was retried, and its output is not the trial's"
    assert (await trials.artifact(trial_id, "trace-stderr", with_reason=True)).reason is None
    assert (await trials.files(trial_id)).items == []
    with pytest.raises(EvolveAPIError, match="was retried") as caught:
        await trials.file(trial_id, "agent/oracle.txt")
    assert (caught.value.code, caught.value.status) == ("not_found", 404)


async def test_an_artifact_too_large_for_one_answer_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("api.routers.traces.MAX_ARTIFACT_BYTES", 4)
    rows = await new_trials(api, is_run=False)
    await keep(api, rows[0]["id"], {"agent/oracle.txt": b"large", "agent/agent-home.json": b"large"})
    fence = Fence(rows[1]["job_id"], rows[1]["id"], 1, AttemptPhase.AGENT, 1)
    await append_chunk(api.db, fence, "agent/stdout", 0, b"large")
    for row, stream in ((rows[0], "trace-stdout"), (rows[0], "agent-home"), (rows[1], "trace-stdout")):
        answer = await api.http.get(f"/api/trials/{row['id']}/trace?stream={stream}")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (413, "invalid_input", "format")

"""Our tables against the published client's own lists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from importlib import import_module
from typing import get_args

from domain.arms import AgentArm
from domain.capabilities import Deployment, capability_document
from domain.error_codes import ERROR_CODES, HTTP_STATUS
from domain.errors import ApiError
from domain.money import nanos_of_usd, usd_of_nanos
from domain.planning import JobRules
from domain.trials import TrialColumns, trial_name, trial_wire, wire_time
from domain.vocabulary import SandboxProvider, TrialStatus

# `evolve.hosted` the attribute is a function; the module is what we read.
hosted = import_module("evolve.hosted")


def test_the_error_codes_are_the_published_ones_verbatim():
    assert get_args(hosted.HostedErrorCode) == ERROR_CODES
    assert len(ERROR_CODES) == 124


def test_statuses_that_the_client_depends_on():
    assert HTTP_STATUS["upload_offset_mismatch"] == 409
    assert HTTP_STATUS["upload_chunk_digest_mismatch"] not in {409, 429, 503}
    assert ApiError("not_a_known_code", "x").status == 500


def test_the_client_reads_our_capability_document():
    rules = JobRules(default_trial_spend_usd=5, upstreams=frozenset({"lab"}))
    document = capability_document(Deployment(SandboxProvider.LOCAL, "no engine", {"a_bytes": 1}, rules))
    capabilities = hosted._map_capability_document(document)
    agents = {agent.name: agent for agent in capabilities.agents}
    assert agents["oracle"].runnable
    assert agents["oracle"].models == []
    runnable = {name for name, agent in agents.items() if agent.runnable}
    assert runnable == {"oracle", "nop", "claude", "codex", "gemini", "qwen", "kimi", "opencode", "droid"}
    assert all(agent.runnable or agent.reason for agent in agents.values())
    assert {name for name, agent in agents.items() if agent.supports_config} == {"claude", "codex"}
    assert agents["claude"].presets == ["no-internet", "pinned-context"]
    assert agents["kimi"].models[0].model_id == "moonshot/kimi-k3"
    assert [provider.name for provider in capabilities.sandbox_providers if provider.default] == ["local"]
    assert capabilities.statuses["job"].terminal == ["COMPLETED", "CANCELLED", "FAILED"]
    assert capabilities.error_codes == list(ERROR_CODES)
    assert capabilities.agent_registration["max_per_user"] > 0
    assert capabilities.limits["job"]["default_max_trial_spend_usd"] == 5
    assert "lab/…" in next(
        rule["rule"] for rule in document["platform_constraints"] if rule["subject"] == "models"
    )


def test_every_default_model_is_on_its_roster():
    document = capability_document(Deployment(SandboxProvider.DOCKER, "", {}))
    for agent in document["agents"]:
        aliases = [model["alias"] for model in agent["models"]]
        assert len(aliases) == len(set(aliases))
        assert agent["default_model"] is None or agent["default_model"] in aliases
        for model in agent["models"]:
            assert model["default_reasoning_effort"] in (model["reasoning_efforts"] or [None])


def test_the_client_reads_a_fresh_trial_with_every_field_sent():
    columns = TrialColumns(
        id="t",
        job_id="j",
        task_name="alpha",
        source="demo",
        attempt=1,
        status=TrialStatus.QUEUED,
        reward=None,
        phase=None,
        n_retries=0,
        retries=[],
        sandbox_id=None,
        has_files=False,
        started_at=None,
        finished_at=None,
        evals_key="oracle__demo",
    )
    body = trial_wire(columns, {}, AgentArm(name="oracle"), max_trial_spend_usd=200.0, is_list_row=True)
    trial = hosted._map_trial(body)
    assert (trial.id, trial.status, trial.agent_info.name) == ("t", "QUEUED", "oracle")
    assert body["x_evals_key"] == "oracle__demo"
    missing = set(hosted.Trial.__dataclass_fields__) - set(body)
    assert missing == set()


def test_a_long_message_is_cut_on_list_rows_only():
    columns = TrialColumns(
        id="t",
        job_id="j",
        task_name="a",
        source="d",
        attempt=1,
        status=TrialStatus.SCORING_ERROR,
        reward=None,
        phase=None,
        n_retries=0,
        retries=[],
        sandbox_id="box",
        has_files=True,
        started_at=None,
        finished_at=None,
    )
    result = {"exception_info": {"exception_type": "ScoringError", "exception_message": "x" * 5000}}
    lengths = [
        len(
            trial_wire(columns, result, AgentArm(name="nop"), max_trial_spend_usd=1, is_list_row=is_list_row)[
                "exception_info"
            ]["exception_message"]
        )
        for is_list_row in (True, False)
    ]
    assert lengths == [2000, 5000]


def test_times_are_utc_with_a_z():
    at = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=timezone(timedelta(hours=2)))
    assert wire_time(at) == "2026-01-02T01:04:05.678Z"
    assert wire_time(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000Z"
    assert wire_time(None) is None


def test_money_is_exact_for_what_people_write():
    assert nanos_of_usd(0.1) == 100_000_000
    assert nanos_of_usd(200) == 200_000_000_000
    assert usd_of_nanos(nanos_of_usd(0.3)) == 0.3
    assert usd_of_nanos(None) is None


def test_a_trial_folder_is_named_by_task_and_seven_characters():
    name = trial_name("a" * 40, "0a0a0a0a-0000-4000-8000-000000000001")
    task, suffix = name.split("__")
    assert (task, len(suffix)) == ("a" * 32, 7)

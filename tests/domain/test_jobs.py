from __future__ import annotations

import math
from typing import Any

import pytest

from domain.errors import ApiError
from domain.jobs import JobCreate, trial_id_of
from domain.planning import Choices, JobRules
from domain.requests import parse_json_object, parse_request
from domain.retry_policy import DEFAULT_EXCLUDE_EXCEPTIONS
from domain.vocabulary import SandboxProvider
from tests.domain.job_factory import JOB_ID, make_plan, make_request, make_version, plan_trials, request_body


def refusal_of(**changes: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make_plan(make_version(), **changes)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"datasets": []}, "datasets"),
        ({"datasets": [{"name": ""}]}, "datasets[0].name"),
        ({"datasets": [{"name": "demo", "n_tasks": 0}]}, "datasets[0].n_tasks"),
        ({"datasets": [{"name": "demo", "task_names": [3]}]}, "datasets[0].task_names[0]"),
        ({"agents": []}, "agents"),
        ({"agents": [{"name": 7}]}, "agents[0].name"),
        ({"agents": [{"name": "oracle", "colour": "red"}]}, "agents[0].colour"),
        ({"agents": [{"name": "oracle"}, {}]}, "agents[1].name"),
        ({"n_attempts": 0}, "n_attempts"),
        ({"n_attempts": True}, "n_attempts"),
        ({"n_attempts": 1.5}, "n_attempts"),
        ({"n_attempts": "2"}, "n_attempts"),
        ({"n_concurrent_trials": 151}, "n_concurrent_trials"),
        ({"max_trial_spend_usd": 0}, "max_trial_spend_usd"),
        ({"max_trial_spend_usd": math.inf}, "max_trial_spend_usd"),
        ({"sandbox_provider": "moon"}, "sandbox_provider"),
        ({"retry": {"max_retries": 11}}, "retry.max_retries"),
        ({"retry": {"max_retries": -1}}, "retry.max_retries"),
        ({"retry": {"wait": 1}}, "retry.wait"),
        ({"retry": {"max_wait_sec": 2_147_484}}, "retry.max_wait_sec"),
        ({"timeout_multiplier": 0}, "timeout_multiplier"),
        ({"agent_timeout_multiplier": -1.0}, "agent_timeout_multiplier"),
        ({"verifier_timeout_multiplier": math.nan}, "verifier_timeout_multiplier"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"agent_env": {"A": "1"}}, "agent_env"),
        ({"verifier_env": {"HOME": "/"}}, "verifier_env"),
    ],
)
def test_a_bad_field_is_refused_by_its_path(changes: dict[str, Any], param: str):
    error = refusal_of(**changes)
    assert (error.code, error.param, error.status) == ("invalid_input", param, 400)
    assert param in error.message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"secrets": [{"name": "TOKEN"}]}, "secrets"),
        ({"analyze": {}}, "analyze"),
        ({"system_log": True}, "system_log"),
        ({"agents": [{"name": "oracle", "skills": ["name:x"]}]}, "agents[0].skills"),
        ({"agents": [{"name": "pi", "model_name": "openrouter/openai/gpt-6-luna"}]}, "agents[0].name"),
    ],
)
def test_what_comes_later_is_refused_by_name(changes: dict[str, Any], param: str):
    error = refusal_of(**changes)
    assert (error.code, error.param, error.status) == ("feature_unsupported", param, 422)


def test_defaults_are_resolved_into_the_plan():
    plan = make_plan()
    assert (plan.n_attempts, plan.n_concurrent_trials) == (1, 4)
    assert plan.max_trial_spend_nanos == 200 * 10**9
    assert plan.sandbox_provider is SandboxProvider.LOCAL
    assert plan.retry.max_retries == 2


def test_the_operator_sets_the_cap_of_a_job_that_names_none():
    choices = Choices([SandboxProvider.LOCAL], rules=JobRules(default_trial_spend_usd=2.5))
    assert make_plan(choices=choices).max_trial_spend_nanos == 2_500_000_000
    assert make_plan(choices=choices, max_trial_spend_usd=7).max_trial_spend_nanos == 7 * 10**9


def test_the_worst_case_is_every_cap_of_the_arms_that_call_a_model():
    claude = {"name": "claude", "model_name": "opus"}
    assert make_plan().worst_case_spend_nanos == 0
    assert make_plan(agents=[claude], n_attempts=2).worst_case_spend_nanos == 3 * 2 * 200 * 3 * 10**9
    assert make_plan(agents=[claude, {"name": "nop"}]).worst_case_spend_nanos == 3 * 200 * 3 * 10**9


def test_the_judges_settings_are_in_the_plan():
    assert make_plan().verifier_env == {}
    assert make_plan(verifier_env={"REWARDKIT_MODEL": "m"}).verifier_env == {"REWARDKIT_MODEL": "m"}


def test_exclusions_absent_are_the_default_set_and_null_is_none():
    assert make_plan().retry.exclude_exceptions == DEFAULT_EXCLUDE_EXCEPTIONS
    assert make_plan(retry={}).retry.exclude_exceptions == DEFAULT_EXCLUDE_EXCEPTIONS
    assert make_plan(retry={"exclude_exceptions": None}).retry.exclude_exceptions == ()
    assert make_plan(retry={"exclude_exceptions": ["X"]}).retry.exclude_exceptions == ("X",)


@pytest.mark.parametrize("include", [None, []])
def test_an_empty_include_set_is_no_filter(include: list[str] | None):
    assert make_plan(retry={"include_exceptions": include}).retry.include_exceptions is None


def test_trials_are_tasks_times_arms_times_attempts_in_a_stable_order():
    agents = [{"name": "nop"}, {"name": "oracle"}]
    planned = plan_trials(make_version("b", "a"), n_attempts=2, agents=agents)
    slots = list(planned.slots())
    assert len(slots) == planned.plan.n_trials == 8
    assert [(slot.task_name, slot.arm_index, slot.attempt) for slot in slots[:5]] == [
        ("b", 0, 1),
        ("b", 0, 2),
        ("b", 1, 1),
        ("b", 1, 2),
        ("a", 0, 1),
    ]
    assert [slot.index for slot in slots] == list(range(8))
    assert [slot.trial_id for slot in slots] == [trial_id_of(JOB_ID, index) for index in range(8)]


def test_selection_takes_includes_minus_excludes_then_the_cap_in_each_dataset():
    versions = (make_version("a1", "a2", "b1"), make_version("a3", "b2", dataset="other"))
    selectors = [
        {"name": "demo", "task_names": ["a*", "b1"], "exclude_task_names": ["a1"], "n_tasks": 1},
        {"name": "other", "exclude_task_names": ["b*"]},
    ]
    assert plan_trials(*versions, datasets=selectors).task_names == (("a2",), ("a3",))


@pytest.mark.parametrize(
    ("selector", "code"),
    [
        ({"task_names": ["nope"]}, "unknown_task_names"),
        ({"exclude_task_names": ["nope"]}, "unknown_task_names"),
        ({"task_names": ["z*"]}, "no_tasks"),
        ({"exclude_task_names": ["*"]}, "no_tasks"),
    ],
)
def test_a_selection_that_finds_nothing_is_refused(selector: dict[str, Any], code: str):
    assert refusal_of(datasets=[{"name": "demo", **selector}]).code == code


def test_naming_a_task_that_failed_to_build_is_refused_with_every_reason():
    with pytest.raises(ApiError) as caught:
        make_plan(
            make_version("a", "b", "c", failed=("a", "b")),
            datasets=[{"name": "demo", "task_names": ["a", "b", "c"]}],
        )
    assert caught.value.code == "task_failed_to_build"
    assert caught.value.details == {
        "failed_tasks": [
            {"task_name": "a", "reason": "no such file"},
            {"task_name": "b", "reason": "no such file"},
        ]
    }


def test_a_partly_built_version_runs_what_is_ready_and_says_so():
    (exclusion,) = make_plan(make_version("a", "b", "c", failed=("c",))).build_exclusions
    assert exclusion.wire() == {
        "dataset": {"name": "demo", "version": "1.0"},
        "n_tasks_ran": 2,
        "n_tasks_selected": 2,
        "n_tasks_failed_to_build": 1,
        "failed_task_names": ["c"],
        "note": "ran 2 of 3 tasks; 1 failed to build",
    }


def test_a_capped_selection_names_its_two_reasons_apart():
    version = make_version("a", "b", "c", "d", failed=("d",))
    (exclusion,) = make_plan(version, datasets=[{"name": "demo", "n_tasks": 1}]).build_exclusions
    assert (exclusion.n_tasks_ran, exclusion.n_tasks_selected) == (1, 3)
    assert "matched 4 tasks" in exclusion.wire()["note"]


def test_every_task_that_the_provider_refuses_is_named():
    refusals = {"a": {"local": "pins an image"}, "c": {"local": "needs compose"}}
    with pytest.raises(ApiError) as caught:
        make_plan(make_version("a", "b", "c", refusals=refusals))
    assert caught.value.code == "provider_unsupported"
    assert caught.value.details == {
        "refused_tasks": [
            {"dataset": "demo", "task_name": "a", "reason": "pins an image"},
            {"dataset": "demo", "task_name": "c", "reason": "needs compose"},
        ]
    }


def test_a_job_holds_at_most_ten_thousand_trials():
    names = [f"t{number}" for number in range(101)]
    assert make_plan(make_version(*names[:100]), n_attempts=100).n_trials == 10_000
    with pytest.raises(ApiError) as caught:
        make_plan(make_version(*names), n_attempts=100)
    assert caught.value.param == "n_attempts"


def test_a_timeout_past_the_timer_ceiling_is_refused_on_the_field_that_made_it():
    version = make_version("a", timeouts_sec={"a": {"agent": 3600.0, "verifier": 600.0}})
    with pytest.raises(ApiError) as caught:
        make_plan(version, timeout_multiplier=1.0, agent_timeout_multiplier=1e6)
    assert (caught.value.code, caught.value.param) == ("invalid_input", "agent_timeout_multiplier")


def test_the_fingerprint_follows_content_and_not_key_order():
    one = make_request(n_attempts=2, job_name="x")
    two = parse_request(JobCreate, dict(reversed(list(request_body(n_attempts=2, job_name="x").items()))))
    assert one.fingerprint() == two.fingerprint()
    assert one.fingerprint() != make_request(n_attempts=3, job_name="x").fingerprint()


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff"])
def test_what_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(ApiError) as caught:
        parse_json_object(body)
    assert caught.value.code == "invalid_json"


def test_a_nul_character_is_refused_by_its_path():
    with pytest.raises(ApiError) as caught:
        parse_json_object(b'{"agents": [{"name": "a\\u0000"}]}')
    assert (caught.value.code, caught.value.param) == ("invalid_input", "agents[0].name")


def test_an_empty_body_is_an_empty_object():
    assert parse_json_object(b"") == {}

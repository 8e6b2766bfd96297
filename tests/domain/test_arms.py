"""Which arms a job may have: what each agent and model takes, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from domain.arms import AgentArm
from domain.errors import ApiError
from domain.jobs import JobPlan
from domain.planning import Choices
from domain.prices import price_book
from domain.rosters import ROSTERS
from domain.vocabulary import SandboxProvider
from tests.domain.job_factory import SCRIPTED, make_plan

OWN = Choices([SandboxProvider.LOCAL], registrations={"acme-cli": "revision-1"})


def claude(**changes: Any) -> dict[str, Any]:
    return {"name": "claude", "model_name": "opus", **changes}


def arm_of(agent: dict[str, Any], choices: Choices = SCRIPTED) -> AgentArm:
    (arm,) = make_plan(agents=[agent], choices=choices).arms
    return arm


def refusal_of(agent: dict[str, Any], choices: Choices = SCRIPTED) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make_plan(agents=[agent], choices=choices)
    assert str(caught.value.param) in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("arm", "code", "field"),
    [
        ({"name": "hal"}, "agent_not_found", "name"),
        ({"name": "antigravity", "model_name": "gemini-3.8-flash"}, "feature_unsupported", "name"),
        ({"name": "nop", "reasoning_effort": "high"}, "agent_effort_unsupported", "reasoning_effort"),
        ({"name": "nop", "reasoning_effort": "loud"}, "invalid_input", "reasoning_effort"),
        ({"name": "nop", "kwargs": {"x": 1}}, "agent_kwarg_unsupported", "kwargs.x"),
        ({"name": "nop", "kwargs": {"config": {}}}, "agent_config_unsupported", "kwargs.config"),
        ({"name": "nop", "preset": "no-internet"}, "agent_preset_unsupported", "preset"),
        ({"name": "nop", "version": "1.0.0"}, "invalid_input", "version"),
        ({"name": "claude"}, "invalid_input", "model_name"),
        ({"name": "droid", "model_name": None}, "invalid_input", "model_name"),
        (claude(model_name="gpt-6.1-sol"), "invalid_input", "model_name"),
        (claude(model_name="claude-haiku-4-5"), "invalid_input", "model_name"),
        (claude(model_name="elsewhere/llama-4"), "invalid_input", "model_name"),
        (claude(model_name="scripted/"), "invalid_input", "model_name"),
        (claude(reasoning_effort="thinking"), "agent_effort_unsupported", "reasoning_effort"),
        (
            {"name": "gemini", "model_name": "gemini-3.5-flash", "reasoning_effort": "low"},
            "agent_effort_unsupported",
            "reasoning_effort",
        ),
        (claude(kwargs={"settings": {}}), "agent_kwarg_unsupported", "kwargs.settings"),
        (claude(kwargs={"config": "theme"}), "invalid_input", "kwargs.config"),
        (claude(kwargs={"config": {"env": {"A": "b"}}}), "agent_config_key_refused", "kwargs.config.env"),
        (claude(preset="all-in"), "agent_preset_unsupported", "preset"),
        (
            {"name": "qwen", "model_name": "qwen3.8-max", "kwargs": {"config": {}}},
            "agent_config_unsupported",
            "kwargs.config",
        ),
        (claude(version="latest"), "invalid_input", "version"),
        (claude(version="^2.1.0"), "invalid_input", "version"),
        (claude(version="2.1"), "invalid_input", "version"),
        (claude(version="v2.1.0"), "invalid_input", "version"),
        ({"name": "acme-cli", "model_name": "opus"}, "agent_not_found", "name"),
    ],
)
def test_an_arm_says_only_what_its_agent_takes(arm: dict[str, Any], code: str, field: str):
    error = refusal_of(arm)
    assert (error.code, error.param) == (code, f"agents[0].{field}")


def test_oracle_needs_no_model_and_a_null_one_is_the_same():
    plan = make_plan(agents=[{"name": "oracle"}, {"name": "oracle", "model_name": None}])
    assert [(arm.name, arm.model_name) for arm in plan.arms] == [("oracle", None)]


@pytest.mark.parametrize("model", ["kimi-k3", "moonshot/kimi-k3"])
def test_alias_and_id_are_both_taken_and_stored_as_given(model: str):
    arm = arm_of({"name": "kimi", "model_name": model})
    assert (arm.model_name, arm.reasoning_effort) == (model, "thinking")


@pytest.mark.parametrize("name", [name for name, roster in ROSTERS.items() if roster.needs_model])
def test_an_effort_left_out_is_the_models_default(name: str):
    roster = ROSTERS[name]
    for model in roster.models if roster.is_runnable else ():
        arm = arm_of({"name": name, "model_name": model.alias})
        assert arm.reasoning_effort == model.default_reasoning_effort
        for effort in model.reasoning_efforts:
            asked = {"name": name, "model_name": model.alias, "reasoning_effort": effort}
            assert arm_of(asked).reasoning_effort == effort


def test_an_effort_that_the_model_does_not_take_names_those_it_does():
    error = refusal_of(claude(model_name="glm-5.3", reasoning_effort="medium"))
    assert error.code == "agent_effort_unsupported"
    assert error.details == {"accepted": ["low", "high", "max"]}
    assert refusal_of(claude(model_name="haiku", reasoning_effort="low")).details == {"accepted": []}


def test_an_unknown_model_names_what_is_near_it():
    error = refusal_of(claude(model_name="sonnet-5"))
    assert error.details == {"near": ["sonnet"]}
    assert "sonnet-5" in error.message
    assert refusal_of({"name": "codex", "model_name": "zzz"}).details == {"near": []}


@pytest.mark.parametrize("name", [name for name, roster in ROSTERS.items() if roster.is_runnable])
def test_scripted_and_declared_models_run_on_every_harness_with_its_own_efforts(name: str):
    roster = ROSTERS[name]
    for model in ("scripted/hello", "lab/llama-4"):
        assert arm_of({"name": name, "model_name": model}).reasoning_effort is None
        for effort in roster.efforts:
            asked = {"name": name, "model_name": model, "reasoning_effort": effort}
            assert arm_of(asked).reasoning_effort == effort


def test_scripted_models_are_unknown_where_they_are_not_enabled():
    error = refusal_of(claude(model_name="scripted/hello"), Choices([SandboxProvider.LOCAL]))
    assert (error.code, error.param) == ("invalid_input", "agents[0].model_name")
    assert "EVOLVE_SCRIPTED_UPSTREAM" in error.message
    own = {"name": "acme-cli", "model_name": "scripted/hello"}
    assert refusal_of(own, OWN).param == "agents[0].model_name"


def test_settings_preset_and_pin_are_part_of_the_arm():
    arm = arm_of(claude(kwargs={"config": {"a": 1}}, preset="no-internet", version="2.1.197-beta.1"))
    assert (arm.kwargs, arm.preset, arm.version) == ({"config": {"a": 1}}, "no-internet", "2.1.197-beta.1")
    assert arm_of(claude(kwargs={})).kwargs is None


def test_a_registered_agent_runs_any_model_that_is_served_and_takes_nothing_else():
    arm = arm_of({"name": "acme-cli", "model_name": "gpt-6.1-sol"}, OWN)
    assert (arm.registration, arm.reasoning_effort, arm.spends) == ("revision-1", None, True)
    assert "registration" not in arm.wire()
    for changes, code in (
        ({"model_name": None}, "invalid_input"),
        ({"model_name": "llama-4"}, "invalid_input"),
        ({"reasoning_effort": "high"}, "agent_effort_unsupported"),
        ({"version": "1.0.0"}, "invalid_input"),
        ({"kwargs": {"config": {}}}, "agent_config_unsupported"),
        ({"preset": "no-internet"}, "agent_preset_unsupported"),
    ):
        asked = {"name": "acme-cli", "model_name": "gpt-6.1-sol", **changes}
        assert refusal_of(asked, OWN).code == code


def test_a_model_without_a_price_is_refused_before_anything_is_made():
    priced = Choices([SandboxProvider.LOCAL], rules=SCRIPTED.rules, prices=price_book())
    assert arm_of(claude(), priced).model_name == "opus"
    assert arm_of(claude(model_name="scripted/hello"), priced).model_name == "scripted/hello"
    assert arm_of({"name": "nop", "model_name": "gpt-0"}, priced).model_name == "gpt-0"
    for model in ("glm-5.3-prime", "lab/llama-4"):
        error = refusal_of(claude(model_name=model), priced)
        assert (error.code, error.param) == ("invalid_input", "agents[0].model_name")
        assert "evolve admin price set" in error.message


def keys_of(plan: JobPlan, dataset: str = "demo") -> list[str]:
    keys = plan.evals_keys()
    assert len(set(keys.values())) == len(keys) == len(plan.arms) * len(plan.datasets)
    assert all(key.split("__")[-1] == name for (_, name), key in keys.items())
    return [keys[position, dataset] for position in range(len(plan.arms))]


def test_a_key_is_agent_model_effort_and_at_last_the_dataset():
    agents = [{"name": "nop"}, {"name": "oracle"}, {"name": "nop", "model_name": "m"}, {"name": "nop"}]
    assert keys_of(make_plan(agents=agents)) == ["nop__demo", "oracle__demo", "nop__m__demo"]
    agents = [claude(version="2.1.0", preset="no-internet"), claude(model_name="haiku")]
    assert keys_of(make_plan(agents=agents)) == ["claude__opus__high__demo", "claude__haiku__demo"]


def test_arms_that_only_differ_elsewhere_are_told_apart_by_what_differs():
    agents = [
        claude(),
        claude(version="2.1.0"),
        claude(version="2.1.0", preset="no-internet"),
        claude(preset="pinned-context", kwargs={"config": {"a": 1, "b": 2}}),
        claude(preset="pinned-context", kwargs={"config": {"a": 2}}),
        claude(reasoning_effort="low"),
    ]
    keys = keys_of(make_plan(agents=agents))
    assert keys[:3] == [
        "claude__opus__high__demo",
        "claude__opus__high__2.1.0__demo",
        "claude__opus__high__2.1.0__no-internet__demo",
    ]
    assert all(key.startswith("claude__opus__high__pinned-context__config-") for key in keys[3:5])
    assert keys[5] == "claude__opus__low__demo"
    reordered = [*agents[:3], claude(preset="pinned-context", kwargs={"config": {"b": 2, "a": 1}})]
    assert keys_of(make_plan(agents=reordered))[3] == keys[3]


def test_names_that_hold_the_separator_are_numbered():
    agents = [{"name": "nop", "model_name": "a"}, {"name": "nop"}]
    plan = make_plan(agents=agents)
    demo, other = plan.datasets[0], plan.datasets[0].model_copy(update={"name": "a__demo"})
    keys = plan.model_copy(update={"datasets": (demo, other)}).evals_keys()
    assert sorted(keys.values()) == ["nop__a__a__demo", "nop__a__demo", "nop__arm-2__a__demo", "nop__demo"]

"""The flags of `evolve run`. A list that was not given is None: the config file's stands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

Words = list[str] | None


@dataclass(frozen=True)
class RunFlags:
    """Those that shape the job."""

    datasets: Annotated[
        Words, Option("-d", "--dataset", metavar="NAME[@VERSION]", help="A dataset. Repeatable.")
    ] = None
    directory: Annotated[
        Path | None,
        Option(
            "--dir",
            metavar="DIR",
            help="Tasks of this directory: published first, unless this very content is, under its name.",
        ),
    ] = None
    agents: Annotated[
        Words,
        Option(
            "-a",
            "--agent",
            metavar="NAME[@VERSION]",
            help="An agent harness, pinned to a version. Repeatable.",
        ),
    ] = None
    models: Annotated[
        Words,
        Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="A model; each is one arm of every agent. Not needed for oracle and nop. Repeatable.",
        ),
    ] = None
    n_attempts: Annotated[
        int | None,
        Option("-k", "--n-attempts", metavar="N", min=1, help="Attempts per task and arm. (default: 1)"),
    ] = None
    n_concurrent: Annotated[
        int | None,
        Option("-n", "--n-concurrent", metavar="N", min=1, max=150, help="Trials in parallel. (default: 4)"),
    ] = None
    include: Annotated[
        Words, Option("-i", "--include", metavar="GLOB", help="Only tasks so named. Repeatable.")
    ] = None
    exclude: Annotated[
        Words, Option("-x", "--exclude", metavar="GLOB", help="No task so named. Repeatable.")
    ] = None
    n_tasks: Annotated[
        int | None,
        Option("-l", "--n-tasks", metavar="N", min=1, help="Cap of tasks per dataset, after the filters."),
    ] = None
    job_name: Annotated[str | None, Option("--job-name", metavar="LABEL", help="The job's label.")] = None
    org: Annotated[str | None, Option("--org", metavar="SLUG", help="The organization that owns it.")] = None
    provider: Annotated[
        str | None,
        Option(
            "-e",
            "--provider",
            metavar="docker|local|e2b|daytona|modal",
            help="Where the sandboxes run. (default: the server's, see its /api/meta)",
        ),
    ] = None
    effort: Annotated[
        str | None,
        Option("--effort", metavar="LEVEL", help="Reasoning effort of every arm. (default: each model's)"),
    ] = None
    preset: Annotated[
        str | None,
        Option(
            "--preset",
            metavar="no-internet|pinned-context",
            help="Of every arm: the vendor's web tools off, or the context window fixed.",
        ),
    ] = None
    agent_kwargs: Annotated[
        Words, Option("--ak", metavar="config=PATH|JSON", help="The harness's own settings, for every arm.")
    ] = None
    agent_env: Annotated[
        Words, Option("--ae", metavar="KEY=VALUE", hidden=True)  # refused by the server
    ] = None
    verifier_env: Annotated[
        Words,
        Option(
            "--ve",
            metavar="KEY=VALUE",
            help="REWARDKIT_JUDGE or REWARDKIT_MODEL, in place of the rubric's judge. Repeatable.",
        ),
    ] = None
    max_trial_spend: Annotated[
        float | None,
        Option(
            "--max-trial-spend",
            metavar="USD",
            help="Cap of model spend per trial attempt. (default: the server's, 200 where it sets none)",
        ),
    ] = None
    max_retries: Annotated[
        int | None,
        Option("-r", "--max-retries", metavar="N", min=0, max=10, help="Automatic retries; 0 is off."),
    ] = None
    retry_include: Annotated[
        Words, Option("--retry-include", metavar="TYPE", help="Retry only these exceptions. Repeatable.")
    ] = None
    retry_exclude: Annotated[
        Words, Option("--retry-exclude", metavar="TYPE", help="Never these; wins. Repeatable.")
    ] = None
    timeout_multiplier: Annotated[
        float | None,
        Option("--timeout-multiplier", metavar="X", help="Scale declared timeouts. (default: 1.0)"),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            "-c", "--config", metavar="FILE", help="YAML or JSON with the job's fields; flags override them."
        ),
    ] = None


@dataclass(frozen=True)
class FollowFlags:
    """What happens once the job is started."""

    print_config: Annotated[
        bool, Option("--print-config", help="Print the request's body and start nothing.")
    ] = False
    watch: Annotated[bool, Option("--watch", help="Follow the job to its end.")] = False
    quiet: Annotated[bool, Option("-q", "--quiet", help="With --watch: print the final block only.")] = False
    as_json: Annotated[bool, Option("--json", help="Print full JSON objects.")] = False


@dataclass(frozen=True)
class LaterFlags:
    """Known, and not in this release."""

    skills: Annotated[str | None, Option("--skills", "--skill", hidden=True)] = None
    secret: Annotated[str | None, Option("--secret", hidden=True)] = None
    secret_inline: Annotated[str | None, Option("--secret-inline", hidden=True)] = None
    analyze: Annotated[bool, Option("--analyze", hidden=True)] = False
    analyze_model: Annotated[str | None, Option("--analyze-model", hidden=True)] = None
    analyze_rubric: Annotated[str | None, Option("--analyze-rubric", hidden=True)] = None
    analyze_prompt: Annotated[str | None, Option("--analyze-prompt", hidden=True)] = None
    analyze_effort: Annotated[str | None, Option("--analyze-effort", hidden=True)] = None
    analyze_provider: Annotated[str | None, Option("--analyze-provider", hidden=True)] = None
    system_log: Annotated[bool, Option("--system-log", hidden=True)] = False

    def asked(self) -> str | None:
        """The first flag that was given."""
        hints: dict[str, Any] = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            if getattr(self, field.name) not in (None, False):
                (option,) = hints[field.name].__metadata__
                return str(option.default if option.default is not ... else option.param_decls[0])
        return None

"""`evolve agent …`: agents of your own, which `-a` then names like a built-in one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.cells import UNKNOWN, member, members, text
from cli.client import TRANSFER_TIMEOUT, Client, Json, connect, json_object, path
from cli.errors import CliError
from cli.flag_groups import with_flag_groups
from cli.jobspec import key_values
from cli.options import JsonFlag
from cli.output import Column, ListFlags, print_facts, print_json, print_list, print_table, say
from cli.packing import pack_directory

app = typer.Typer(no_args_is_help=True)

AgentName = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.", show_default=False)]

AGENT_COLUMNS = (
    Column("name", lambda agent: text(agent.get("name"))),
    Column("org", lambda agent: text(agent.get("org"))),
    Column("source", lambda agent: text(agent.get("source"))),
    Column("run", lambda agent: text(agent.get("run_command"))),
    Column("updated", lambda agent: text(agent.get("updated_at"))),
    Column("created", lambda agent: text(agent.get("created_at")), is_default=False),
    Column("env", lambda agent: text(" ".join(member(agent, "env"))), is_default=False),
)
BUILT_IN_COLUMNS = (
    Column("name", lambda agent: text(agent.get("name"))),
    Column("runs", lambda agent: "yes" if agent.get("runnable") else f"no: {text(agent.get('reason'))}"),
    Column("default model", lambda agent: text(agent.get("default_model"))),
    Column("models", lambda agent: text(len(members(agent.get("models"))) or None)),
    Column("presets", lambda agent: text(" ".join(agent.get("presets") or ()))),
)


@app.command("add")
def add_agent(
    name: AgentName,
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="COMMAND",
            help="Run with `sh -c` in the task's directory; the instruction is on stdin.",
            show_default=False,
        ),
    ],
    install_script: Annotated[
        Path | None,
        typer.Option(
            "--install-script", metavar="FILE", help="Built by this script, whose text is uploaded."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Built by this directory's install.sh, or its bin/ as it is."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--ae", metavar="KEY=VALUE", help="Environment of the command, no secrets. Repeatable."),
    ] = None,
    org: Annotated[str | None, typer.Option(metavar="SLUG", help="Whose members may run it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Register an agent. What builds it leaves executables in $PREFIX/bin; it sees no secret.

    The command finds the instruction also at $EVOLVE_INSTRUCTION_FILE, its model's name in $EVOLVE_MODEL,
    and an OpenAI-compatible URL with its key in $EVOLVE_GATEWAY_BASE_URL and $EVOLVE_GATEWAY_API_KEY, which
    are $OPENAI_BASE_URL and $OPENAI_API_KEY too.
    """
    if (install_script is None) == (directory is None):
        raise typer.BadParameter("give one of the two", param_hint="--install-script, --dir")
    fields = {"name": name, "run_command": run}
    if org is not None:
        fields["org"] = org
    if env:
        fields["env"] = json.dumps(key_values("--ae", env))
    with connect() as client:
        if install_script is not None:
            agent = _send(client, {**fields, "install_script": _read_script(install_script)}, None)
        else:
            assert directory is not None
            agent = _send(client, fields, directory)
    if as_json:
        print_json(agent)
    else:
        say(str(agent["name"]))


def _read_script(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{script}: {error}", code="invalid_input") from None


def _send(client: Client, fields: dict[str, str], directory: Path | None) -> Json:
    """The metadata, then the directory's archive where there is one, as one form."""
    with tempfile.TemporaryFile() as archive:
        parts: list[tuple[str, object]] = [(name, (None, value.encode())) for name, value in fields.items()]
        if directory is not None:
            if not directory.is_dir():
                raise CliError(f"{directory} is no directory", code="invalid_input")
            pack_directory(directory, archive)
            archive.seek(0)
            parts.append(("archive", ("source.tar.gz", archive, "application/gzip")))
        response = client.request("POST", "/api/agents", files=parts, timeout=TRANSFER_TIMEOUT)
    return json_object(response)


@app.command("list")
@with_flag_groups
def list_agents(
    flags: ListFlags,
    scope: Annotated[
        Literal["my", "shared", "org"] | None, typer.Option(help="Whose agents. (default: my)")
    ] = None,
    built_in: Annotated[
        bool, typer.Option("--built-in", help="The agents that come with the server instead.")
    ] = False,
) -> None:
    """List registered agents, newest first; with --built-in those that come with the server."""
    with connect() as client:
        if built_in:
            agents = _built_in(client)
            print_list(agents, BUILT_IN_COLUMNS, flags, identify=lambda agent: str(agent["name"]))
            return
        agents = client.pages("/api/agents", {"scope": scope})
        print_list(agents, AGENT_COLUMNS, flags, identify=lambda agent: str(agent["name"]))


@app.command("show")
def show_agent(name: AgentName, as_json: JsonFlag = False) -> None:
    """Show one agent: how a registered one runs, or the models, efforts and presets of a built-in one."""
    with connect() as client:
        agent = next((each for each in _built_in(client) if each.get("name") == name), None)
        is_built_in = agent is not None
        if agent is None:
            agent = client.get(path("/api/agents/{}", name))
    if as_json:
        print_json(agent)
    elif is_built_in:
        _print_built_in(agent)
    else:
        _print_registered(agent)


def _built_in(client: Client) -> list[Json]:
    return members(client.get("/api/meta").get("agents"))


def _print_built_in(agent: Json) -> None:
    print_facts(
        [
            ("agent", text(agent.get("name"))),
            ("runs", "yes" if agent.get("runnable") else f"no: {text(agent.get('reason'))}"),
            ("default model", text(agent.get("default_model"))),
            ("default effort", text(agent.get("default_reasoning_effort"))),
            ("version", "can be pinned: -a NAME@VERSION" if agent.get("version_pinnable") else UNKNOWN),
            ("settings", "taken: --ak config=FILE" if agent.get("supports_config") else UNKNOWN),
            ("presets", ", ".join(agent.get("presets") or ()) or UNKNOWN),
        ]
    )
    models = members(agent.get("models"))
    if models:
        say()
        print_table(["model", "is", "efforts", "default effort"], map(_model_row, models))


def _model_row(model: Json) -> list[str]:
    efforts = " ".join(model.get("reasoning_efforts") or ()) or UNKNOWN
    name = text(model.get("alias") or model.get("model_id"))
    return [name, text(model.get("model_id")), efforts, text(model.get("default_reasoning_effort"))]


def _print_registered(agent: Json) -> None:
    print_facts(
        [
            ("agent", text(agent.get("name"))),
            ("org", text(agent.get("org"))),
            ("source", text(agent.get("source"))),
            ("run", text(agent.get("run_command"))),
            *(("env", f"{key}={value}") for key, value in member(agent, "env").items()),
            ("created", text(agent.get("created_at"))),
            ("updated", text(agent.get("updated_at"))),
        ]
    )


@app.command("remove")
def remove_agent(name: AgentName) -> None:
    """Remove a registered agent. Jobs that ran it keep their records; one that runs it goes on."""
    with connect() as client:
        client.delete(path("/api/agents/{}", name))
    say(f"removed {name}")

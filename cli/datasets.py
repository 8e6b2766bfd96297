"""`evolve dataset …`: the catalog, publishing to it, and what it built."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli import later
from cli.cells import UNKNOWN, member, members, text
from cli.client import Client, Json, connect, path
from cli.corpus import CorpusVerdict, check_corpus, has_manifest
from cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, CliError, NotInThisRelease
from cli.flag_groups import with_flag_groups
from cli.jobspec import dataset_selector
from cli.options import JsonFlag, OutputDirectory
from cli.output import (
    Column,
    ListFlags,
    hint,
    is_terminal,
    print_facts,
    print_json,
    print_list,
    print_table,
    say,
)
from cli.packing import refuse_existing, unpack_archive
from cli.publishing import (
    failure_line,
    follow_import,
    newest_import,
    publish_directory,
    read_version,
    report_import,
)
from cli.transfers import download_archive
from domain.vocabulary import ImportStatus

app = typer.Typer(no_args_is_help=True)

DatasetRef = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", show_default=False)]


def _version(dataset: Json, key: str, member_name: str) -> str:
    return text(member(dataset, key).get(member_name))


DATASET_COLUMNS = (
    Column("name", lambda dataset: text(dataset.get("name"))),
    Column("active", lambda dataset: _version(dataset, "active_version", "version")),
    Column("tasks", lambda dataset: _version(dataset, "active_version", "task_count")),
    Column("latest", lambda dataset: _version(dataset, "latest_version", "version")),
    Column("state", lambda dataset: _version(dataset, "latest_version", "state")),
    Column("failed", lambda dataset: _version(dataset, "latest_version", "n_failed_tasks"), is_default=False),
    Column("description", lambda dataset: text(dataset.get("description"))),
)


@app.command("list")
@with_flag_groups
def list_datasets(
    flags: ListFlags,
    search: Annotated[
        str | None, typer.Option(help="Only those whose name or description holds this.")
    ] = None,
) -> None:
    """List the catalog."""
    with connect() as client:
        datasets = list(client.pages("/api/datasets", {"search": search}))
    print_list(datasets, DATASET_COLUMNS, flags, identify=lambda dataset: str(dataset["name"]))
    for dataset in datasets:
        if (moved := _moved(dataset)) is not None:
            hint(moved)


@app.command("show")
def show_dataset(reference: DatasetRef, as_json: JsonFlag = False) -> None:
    """Show a version: its tasks, their timeouts, which providers can run them, what failed to build."""
    selector = dataset_selector(reference)
    with connect() as client:
        detail, tasks = read_version(client, selector["name"], selector.get("version"))
    if as_json:
        print_json({**detail, "tasks": {"items": tasks, "nextCursor": None, "hasMore": False}})
        return
    print_facts(_dataset_facts(detail))
    say()
    print_table(
        ["version", "state", "tasks", "failed", "created"], map(_version_row, members(detail["versions"]))
    )
    if tasks:
        say()
        providers = sorted({name for task in tasks for name in member(task, "providers")})
        rows = (_task_row(task, providers) for task in tasks)
        print_table(["task", "agent timeout", "verifier timeout", *providers, "notes"], rows)
    for failed in members(detail.get("failed_tasks")):
        say(f"FAILED  {failure_line(failed)}")


def _dataset_facts(detail: Json) -> list[tuple[str, str]]:
    selected = member(detail, "selected_version")
    return [
        ("dataset", text(detail.get("name"))),
        ("title", text(detail.get("title"))),
        ("description", text(detail.get("description"))),
        ("active version", _version(detail, "active_version", "version")),
        ("shown version", text(selected.get("version"))),
        ("state", text(selected.get("state"))),
        ("source", _source(member(selected, "source"))),
        ("upstream", _moved(detail) or UNKNOWN),
    ]


def _source(source: Json) -> str:
    kind = source.get("kind")
    where = source.get("git_url") or source.get("archive_url") or source.get("hub_package")
    pin = source.get("commit") or source.get("digest")
    return " ".join(str(part) for part in (kind, where, pin) if part) or UNKNOWN


def _moved(dataset: Json) -> str | None:
    upstream = member(dataset, "upstream")
    if upstream.get("moved") is not True:
        return None
    return f"{dataset.get('name')}: {upstream.get('ref')} has moved to {text(upstream.get('latest_commit'))}"


def _version_row(version: Json) -> list[str]:
    return [
        text(version.get(key)) for key in ("version", "state", "task_count", "n_failed_tasks", "created_at")
    ]


def _task_row(task: Json, providers: list[str]) -> list[str]:
    notes = "; ".join(str(note.get("message")) for note in members(task.get("notes")))
    answers = [_provider_cell(member(member(task, "providers"), name)) for name in providers]
    timeouts = [text(task.get(key)) for key in ("agent_timeout_sec", "verifier_timeout_sec")]
    return [text(task.get("task_name")), *timeouts, *answers, notes or UNKNOWN]


def _provider_cell(verdict: Json) -> str:
    if not verdict:
        return UNKNOWN
    if verdict.get("ok") is True:
        return f"on {verdict['degrades_to']}" if verdict.get("degrades_to") else "yes"
    return f"no: {text(verdict.get('reason'))}"


@app.command("check")
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)], as_json: JsonFlag = False
) -> None:
    """Judge a dataset directory by its files, without uploading anything. A NOTE is not a refusal."""
    verdict = check_corpus(directory)
    if as_json:
        print_json(_check_document(verdict))
    else:
        _print_check(verdict)
    if verdict.refused:
        raise typer.Exit(EXIT_FAILED)


def _print_check(verdict: CorpusVerdict) -> None:
    for task in verdict.tasks:
        say(
            f"ok       {task.name}  {', '.join(task.providers)}"
            if task.ok
            else f"REFUSED  {task.name}  {task.reason}"
        )
        for note in task.notes:
            say(f"NOTE     {task.name}  {note}")
    say(f"{len(verdict.tasks) - len(verdict.refused)} of {len(verdict.tasks)} tasks can be published")


def _check_document(verdict: CorpusVerdict) -> Json:
    manifest = verdict.manifest
    return {
        "tasks": [
            {
                "name": task.name,
                "ok": task.ok,
                "reason": task.reason,
                "providers": list(task.providers),
                "notes": list(task.notes),
            }
            for task in verdict.tasks
        ],
        "manifest": None
        if manifest is None
        else {"name": manifest.dataset.name, "version": manifest.dataset.version},
    }


@app.command("publish")
def publish(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="The dataset directory.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Catalog name; may be left to the directory's dataset.toml.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version label; likewise.")] = None,
    org: Annotated[str | None, typer.Option(help="The organization that owns the dataset.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the build to its end.")] = False,
    skip_preflight: Annotated[
        bool, typer.Option("--skip-preflight", help="Upload without judging the tasks here first.")
    ] = False,
    as_json: JsonFlag = False,
    git: Annotated[str | None, typer.Option("--git", hidden=True)] = None,
    ref: Annotated[str | None, typer.Option("--ref", hidden=True)] = None,
    git_path: Annotated[str | None, typer.Option("--path", hidden=True)] = None,
    from_: Annotated[str | None, typer.Option("--from", hidden=True)] = None,
) -> None:
    """Publish a directory of tasks as a version of a dataset, and build its images.

    A task that is refused stops it before anything is uploaded. Publishing from --git and --from is not in
    this release.
    """
    for flag, value in (("--git", git), ("--ref", ref), ("--path", git_path), ("--from", from_)):
        if value is not None:
            raise NotInThisRelease(flag)
    if directory is None:
        raise typer.BadParameter("name the directory", param_hint="--dir")
    if (name is None or version is None) and not has_manifest(directory):
        raise typer.BadParameter(
            f"{directory} has no dataset.toml: give both", param_hint="--name, --version"
        )
    if not skip_preflight:
        _preflight(directory)
    with connect() as client:
        accepted = publish_directory(client, directory, name=name, version=version, org=org)
        if not watch:
            _print_accepted(accepted, as_json=as_json)
            return
        _follow(client, accepted, as_json=as_json)


def _preflight(directory: Path) -> None:
    verdict = check_corpus(directory)
    for task in verdict.refused:
        hint(f"REFUSED  {task.name}  {task.reason}")
    if verdict.refused:
        raise CliError(
            f"{len(verdict.refused)} of {len(verdict.tasks)} tasks are refused; nothing was uploaded",
            code="task_parse_failed",
        )


def _print_accepted(accepted: Json, *, as_json: bool) -> None:
    if as_json:
        print_json(accepted)
        return
    say(str(accepted["id"]))
    if is_terminal():
        hint(f"follow it with: evolve dataset watch {accepted.get('name')}")


@app.command("watch")
def watch_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)], as_json: JsonFlag = False
) -> None:
    """Follow your latest publish of a dataset until its version is READY or FAILED."""
    with connect() as client:
        _follow(client, newest_import(client, name), as_json=as_json)


def _follow(client: Client, accepted: Json, *, as_json: bool) -> None:
    try:
        done = follow_import(client, accepted, tell=hint if as_json else say)
        if as_json:
            print_json(done)
        else:
            report_import(client, done)
    except KeyboardInterrupt:
        hint(f"\nthe import goes on; follow it with: evolve dataset watch {accepted.get('name')}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if done.get("status") != ImportStatus.COMPLETED:
        raise typer.Exit(EXIT_FAILED)


@app.command("activate")
def activate(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    version: Annotated[str, typer.Argument(metavar="VERSION", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Point the bare name at another READY version."""
    with connect() as client:
        detail = client.post(path("/api/datasets/{}/versions/{}/activate", name, version))
    if as_json:
        print_json(detail)
    else:
        say(f"{name} is {name}@{_version(detail, 'active_version', 'version')}")


@app.command("download")
def download_dataset(reference: DatasetRef, directory: OutputDirectory = Path("datasets")) -> None:
    """Save the package of a dataset that you own as DIR/NAME@VERSION/, solutions included."""
    selector = dataset_selector(reference)
    target = directory / re.sub(r"[/\\\0]", "-", reference.strip()).lstrip(".")
    refuse_existing(target, overwrite=False)
    with connect() as client, tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "corpus.tar.gz"
        route = path("/api/datasets/{}/download", selector["name"])
        download_archive(
            client, route, archive, {"version": selector["version"]} if "version" in selector else None
        )
        unpack_archive(archive, target, is_wrapped=False)
    say(str(target))


later.refuse(app, "evolve dataset", "delete", "update")

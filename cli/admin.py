"""`evolve admin`: users, keys and money, straight in the database; for who runs the server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from cli import admin_hosts, admin_money, admin_providers, admin_reaper, store_side
from cli.options import JsonFlag
from cli.output import hint, print_json, print_table, say

app = typer.Typer(no_args_is_help=True)
key_app = typer.Typer(no_args_is_help=True)
user_app = typer.Typer(no_args_is_help=True)
app.add_typer(key_app, name="key", help="API keys.")
app.add_typer(user_app, name="user", help="Users.")
app.add_typer(admin_money.provider_key_app, name="provider-key", help="Own keys of model providers.")
app.add_typer(admin_money.credits_app, name="credits", help="What a user may still spend.")
app.add_typer(admin_money.budget_app, name="budget", help="What an organization may spend a month.")
app.add_typer(admin_money.price_app, name="price", help="Prices of models that the packaged book lacks.")
app.add_typer(admin_providers.app, name="providers", help="Whether sandbox providers make boxes.")
app.add_typer(admin_hosts.app, name="host", help="Worker hosts: which live, and which will not come back.")
app.command("platform-stop")(admin_money.platform_stop)
app.command("spend")(admin_money.spend)
app.command("reap")(admin_reaper.reap)
app.command("incidents")(admin_reaper.incidents)

UserFlag = Annotated[
    str | None, typer.Option("--user", metavar="EMAIL", help="Whose; the owner's by default.")
]


@key_app.command("create")
def create_key(
    user: UserFlag = None,
    label: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="It may read and change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Mint a key and print it; it is stored hashed and cannot be shown again."""
    _print_new(asyncio.run(store_side.create_key(user, label=label, is_read_only=read_only)), as_json)


@key_app.command("list")
def list_keys(user: UserFlag = None, as_json: JsonFlag = False) -> None:
    """List keys, revoked ones included; of all users unless one is named."""
    rows = asyncio.run(store_side.list_keys(user))
    if as_json:
        print_json([{name: _plain(value) for name, value in asdict(row).items()} for row in rows])
        return
    headers = ("id", "user", "label", "access", "created", "last used", "revoked")
    print_table(headers, (_cells(row) for row in rows))


@key_app.command("revoke")
def revoke_key(key: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `list` shows it.")]) -> None:
    """Revoke a key for good."""
    asyncio.run(store_side.revoke_key(key))
    say(f"revoked {key}")


@user_app.command("add")
def add_user(
    email: Annotated[str, typer.Argument(metavar="EMAIL", help="The new user's address.")],
    slug: Annotated[
        str | None,
        typer.Option(help="Name of the personal organization; the address's first part by default."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a user with a personal organization, and print a first key."""
    if "@" not in email.strip("@"):
        raise typer.BadParameter(f"{email!r} is not an address", param_hint="EMAIL")
    _print_new(asyncio.run(store_side.add_user(email, slug or email.partition("@")[0].lower())), as_json)


def _print_new(key: store_side.NewKey, as_json: bool) -> None:
    if as_json:
        print_json({"id": key.id, "user": key.user, "api_key": key.secret})
        return
    hint(f"key {key.id} of {key.user}; it is not shown again:")
    say(key.secret)


def _cells(row: store_side.KeyRow) -> list[str]:
    access = "read-only" if row.is_read_only else "full"
    times = (row.created_at, row.last_used_at, row.revoked_at)
    return [row.id, row.user, row.label or "", access, *(_plain(time) or "" for time in times)]


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value

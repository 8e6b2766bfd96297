"""`evolve auth …`: who the server takes us for."""

from __future__ import annotations

import typer

from cli import later
from cli.cells import member, text
from cli.client import connect
from cli.options import JsonFlag
from cli.output import print_facts, print_json

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A callback keeps `status` a command of its own."""


@app.command("status")
def status(as_json: JsonFlag = False) -> None:
    """Show the server, the user and the API key in force. The key's secret is never shown."""
    with connect() as client:
        answer = client.get("/api/auth/status")
        url = client.url
    if as_json:
        print_json(answer)
        return
    key = member(answer, "key")
    print_facts(
        [
            ("server", url),
            ("user", text(answer.get("email") or answer.get("user_id"))),
            ("key", text(key.get("label") or key.get("id"))),
            ("key created", text(key.get("created_at"))),
            ("key last used", text(key.get("last_used_at"))),
        ]
    )


later.refuse(app, "evolve auth", "org")

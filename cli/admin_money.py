"""`evolve admin`'s commands about money: limits, provider keys, prices."""

from __future__ import annotations

import asyncio
import getpass
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

from cli import money_side
from cli.cells import UNKNOWN, dollars
from cli.errors import CliError
from cli.options import JsonFlag
from cli.output import hint, print_json, print_table, say
from domain.models import MODEL_PROVIDERS, SCRIPTED, route_of
from domain.money import nanos_written, usd_of_nanos
from domain.prices import ModelPrice, Rates

if TYPE_CHECKING:
    from pydantic import BaseModel

provider_key_app = typer.Typer(no_args_is_help=True)
credits_app = typer.Typer(no_args_is_help=True)
budget_app = typer.Typer(no_args_is_help=True)
price_app = typer.Typer(no_args_is_help=True)

UNLIMITED = "unlimited"
MAX_KEY_CHARS = 4096
_UPSTREAM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Provider = Annotated[str, typer.Argument(metavar="PROVIDER", help="`anthropic`, `openai`, …")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name at the provider.")]
OwnerFlag = Annotated[
    str | None,
    typer.Option("--user", metavar="EMAIL", help="For this user's jobs alone; else for everyone's."),
]
Usd = Annotated[str, typer.Argument(metavar="USD|unlimited", help="US dollars.")]


@provider_key_app.command("set")
def set_provider_key(
    provider: Provider,
    value: Annotated[str | None, typer.Argument(hidden=True)] = None,
    user: OwnerFlag = None,
) -> None:
    """Store a key of a model provider, read from standard input; it is encrypted and not shown again."""
    if value is not None:
        # Not said by Typer, which would print it.
        raise typer.BadParameter("the key is read from standard input, never from an argument")
    _check_provider(provider)
    fingerprint = asyncio.run(money_side.set_provider_key(provider, user, _key_from_stdin()))
    say(f"stored the {provider} key {fingerprint} of {user or 'the operator'}")


@provider_key_app.command("list")
def list_provider_keys(as_json: JsonFlag = False) -> None:
    """List them: whose they are, and the beginning of the key's SHA-256; never a value."""
    keys = asyncio.run(money_side.list_provider_keys())
    if as_json:
        print_json([key.model_dump(mode="json") for key in keys])
        return
    rows = ((k.provider, k.email or k.owner_user_id or "everyone", k.fingerprint, _time(k)) for k in keys)
    print_table(("provider", "for", "fingerprint", "set"), rows)


@provider_key_app.command("remove")
def remove_provider_key(provider: Provider, user: OwnerFlag = None) -> None:
    """Forget a key; calls use the next one: the operator's, or the environment's."""
    asyncio.run(money_side.remove_provider_key(provider, user))
    say(f"removed the {provider} key of {user or 'the operator'}")


@credits_app.command("set")
def set_credits(
    user: Annotated[str, typer.Argument(metavar="EMAIL", help="The user.")],
    usd: Usd,
) -> None:
    """Set what a user may still spend on model calls; at zero their jobs are refused."""
    asyncio.run(money_side.set_credits(user, _amount(usd)))
    say(f"{user} has {_limit(_amount(usd))}")


@budget_app.command("set")
def set_budget(
    org: Annotated[str, typer.Argument(metavar="ORG", help="The organization's slug or id.")],
    usd: Usd,
) -> None:
    """Set what an organization may spend a calendar month (UTC), what it spent in this one included."""
    asyncio.run(money_side.set_budget(org, _amount(usd)))
    say(f"{org} has {_limit(_amount(usd))} a month")


def platform_stop(
    state: Annotated[Literal["on", "off"], typer.Argument(metavar="on|off", help="`on` stops.")],
) -> None:
    """Refuse every model call from now on, or admit calls again; calls under way are not touched."""
    asyncio.run(money_side.set_platform_stop(state == "on"))
    say(f"the platform's stop is {state}")


def spend(
    job: Annotated[str | None, typer.Option(metavar="JOB", help="What this job's calls came to.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the limits that are set and what is spent of them; or what a job's calls came to."""
    if job is None:
        _print_limits(as_json)
    else:
        _print_job(job, as_json)


@price_app.command("set")
def set_price(
    provider: Provider,
    model: Model,
    input_price: Annotated[str, typer.Option("--input", metavar="USD", help="A million tokens in.")],
    output_price: Annotated[str, typer.Option("--output", metavar="USD", help="A million tokens out.")],
    cached: Annotated[
        str | None, typer.Option(metavar="USD", help="… read from a cache; else as `--input`.")
    ] = None,
    cache_write: Annotated[
        str | None, typer.Option(metavar="USD", help="… written to a cache; else as `--input`.")
    ] = None,
    cache_write_1h: Annotated[
        str | None, typer.Option(metavar="USD", help="… written to a longer-lived one; else as the other.")
    ] = None,
) -> None:
    """State the price of a model in US dollars per million tokens, in place of the packaged one."""
    _check_provider(provider)
    model = _id_of(provider, model)
    stated = {
        "input": input_price,
        "output": output_price,
        "cached_input": cached,
        "cache_write_5m": cache_write,
        "cache_write_1h": cache_write_1h,
    }
    rates = _rates(stated)
    say(f"{provider} {model}: version {asyncio.run(money_side.set_price(provider, model, rates))}")


@price_app.command("unset")
def unset_price(provider: Provider, model: Model) -> None:
    """Take a stated price back: the packaged one counts, where there is one."""
    model = _id_of(provider, model)
    asyncio.run(money_side.set_price(provider, model, None))
    say(f"{provider} {model}: no price of the operator's")


@price_app.command("list")
def list_prices(
    provider: Annotated[
        str | None, typer.Argument(metavar="PROVIDER", help="All prices in force there; else stated ones.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List prices, in US dollars per million tokens."""
    prices = asyncio.run(money_side.list_prices(provider))
    if as_json:
        print_json([price.model_dump(mode="json", exclude_none=True) for price in prices])
        return
    headers = (
        "provider",
        "model",
        "input",
        "cached",
        "write",
        "write 1h",
        "output",
        "longer prompts",
        "version",
    )
    print_table(headers, map(_price_cells, prices))


def _print_limits(as_json: bool) -> None:
    is_stopped, credits, budgets = asyncio.run(money_side.limits())
    if as_json:
        print_json({"platform_stop": is_stopped, "credits": _wire(credits), "budgets": _wire(budgets)})
        return
    if is_stopped:
        hint("the platform's stop is on: no call is admitted")
    users = (
        ("user", c.email or c.user_id, _limit(c.balance_nanos), UNKNOWN, _usd(c.held_nanos)) for c in credits
    )
    orgs = (
        ("organization", b.slug, _limit(b.limit_nanos), _usd(b.spent_nanos), _usd(b.held_nanos))
        for b in budgets
    )
    print_table(("whose", "name", "left, or a month", "spent this month", "held"), (*users, *orgs))


def _print_job(job: str, as_json: bool) -> None:
    rows = asyncio.run(money_side.job_spend(job))
    if as_json:
        print_json(_wire(rows))
        return
    cells = (
        (
            row.role, row.provider, row.upstream_model, str(row.n_calls), str(row.n_refused),
            str(row.n_unmeasured), str(row.prompt_tokens), str(row.output_tokens), _usd(row.spent_nanos),
            _usd(row.held_nanos),
        )
        for row in rows
    )  # fmt: skip
    print_table(
        ("role", "provider", "model", "calls", "refused", "unmeasured", "in", "out", "spent", "held"), cells
    )


def _wire(rows: Sequence[BaseModel]) -> list[dict[str, object]]:
    return [row.model_dump(mode="json") for row in rows]


def _price_cells(price: ModelPrice) -> tuple[str, ...]:
    rates = price.rates
    parts = (rates.input, rates.cached_input, rates.cache_write_5m, rates.cache_write_1h, rates.output)
    longer = ", ".join(f">{tier.above_prompt_tokens}" for tier in price.long_prompts)
    return price.provider, price.model, *map(_rate, parts), longer or UNKNOWN, price.version[:20]


def _rate(nanos_per_million: int | None) -> str:
    return UNKNOWN if nanos_per_million is None else f"{usd_of_nanos(nanos_per_million):.10g}"


def _usd(nanos: int) -> str:
    return dollars(usd_of_nanos(nanos))


def _limit(nanos: int | None) -> str:
    return UNLIMITED if nanos is None else _usd(nanos)


def _amount(usd: str) -> int | None:
    if usd == UNLIMITED:
        return None
    try:
        return nanos_written(usd)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="USD") from None


def _rates(stated: dict[str, str | None]) -> Rates:
    """Dollars per million are nano-dollars per million, a billion times."""
    try:
        return Rates(**{name: nanos_written(usd) for name, usd in stated.items() if usd is not None})
    except ValidationError:
        raise typer.BadParameter("a price is more than 0: what is not known is refused, not free") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_provider(provider: str) -> None:
    if provider in MODEL_PROVIDERS and provider != SCRIPTED:
        return
    if provider == SCRIPTED or _UPSTREAM_NAME.fullmatch(provider) is None:
        raise typer.BadParameter(f"{provider!r} is no provider's name", param_hint="PROVIDER")
    hint(f"{provider} is not one of {', '.join(MODEL_PROVIDERS)}: it counts where EVOLVE_UPSTREAMS names it")


def _id_of(provider: str, model: str) -> str:
    """What the provider itself calls the model."""
    route = route_of(f"{provider}/{model}")
    return model if route is None else route.upstream_model


def _key_from_stdin() -> str:
    value = getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.read(MAX_KEY_CHARS + 2)
    value = value.strip()
    if (
        not value
        or len(value) > MAX_KEY_CHARS
        or not value.isascii()
        or not value.isprintable()
        or " " in value
    ):
        raise CliError("standard input holds no key: one line of printable ASCII", code="invalid_input")
    return value


def _time(key: money_side.ListedProviderKey) -> str:
    return key.updated_at.isoformat(timespec="seconds")

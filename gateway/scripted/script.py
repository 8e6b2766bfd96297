"""Scripts of the offline upstream: what a made-up model says, turn by turn, and what it says that it used.

models:
  hello:
    prices: {input: 3.0, output: 15.0, cached_input: 0.3}   # dollars a million tokens
    turns:
      - text: I will make the file.
        shell: echo hello > hello.txt
        usage: {input_tokens: 1200, cached_input_tokens: 300, output_tokens: 40}
      - text: Done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from domain.errors import EvolveError
from domain.models import SCRIPTED
from domain.money import NANOS_PER_USD
from domain.prices import ModelPrice, Rates, digest
from domain.usage import CallUsage

DEFAULT_USAGE = CallUsage(input_tokens=100, output_tokens=20)


class BadScript(EvolveError):
    """A script that cannot be used; the message names file and member."""

    code = "invalid_settings"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Part):
    """A call of a tool. Of several names the first that the request offers is called; `namespace` is that
    of Codex's nested tools."""

    name: str | tuple[str, ...]
    arguments: dict[str, Any] = {}
    namespace: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name


class ScriptedError(_Part):
    """An answer with an error status. `body` defaults to the protocol's own shape around `message`;
    `times` is how often the same request gets it before it gets the turn, by default always."""

    status: int = Field(ge=400, le=599)
    message: str = "scripted error"
    body: Any = None
    retry_after_sec: int | None = None
    times: PositiveInt | None = None


class Turn(_Part):
    """What the model answers once, or `repeat` times in a row.

    `shell` is a command for whichever shell tool the request offers. `usage` may be `missing`: none is
    told. A stream ends early after `cut_after_chunks` events, by a broken connection, or after
    `fail_after_chunks`, by the protocol's own error.
    """

    thinking: str | None = None
    text: str | None = None
    shell: str | None = None
    tool_call: ScriptedCall | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: CallUsage | Literal["missing"] = DEFAULT_USAGE
    delay_sec: float = Field(default=0, ge=0)
    chunk_delay_sec: float = Field(default=0, ge=0)
    error: ScriptedError | None = None
    cut_after_chunks: int | None = Field(default=None, ge=0)
    fail_after_chunks: int | None = Field(default=None, ge=0)
    repeat: PositiveInt = 1

    @property
    def calls(self) -> tuple[ScriptedCall, ...]:
        return self.tool_calls if self.tool_call is None else (self.tool_call, *self.tool_calls)


class Case(_Part):
    """Turns for conversations in which the user's words contain `contains`."""

    contains: str
    turns: tuple[Turn, ...]


class Prices(_Part):
    """Dollars a million tokens."""

    input: PositiveFloat = 1.0
    output: PositiveFloat = 5.0
    cached_input: PositiveFloat | None = None
    cache_write_5m: PositiveFloat | None = None
    cache_write_1h: PositiveFloat | None = None
    reasoning: PositiveFloat | None = None


class Script(_Part):
    """One model. The first case that fits is played, else `turns`."""

    prices: Prices = Prices()
    max_input_tokens: PositiveInt = 200_000
    max_output_tokens: PositiveInt = 32_000
    turns: tuple[Turn, ...] = ()
    cases: tuple[Case, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.turns and not self.cases:
            raise ValueError("a script has turns or cases")
        return self

    def turn(self, said: str, index: int) -> Turn | None:
        """The turn that follows `index` turns of the model; None when the script is over."""
        turns = next((case.turns for case in self.cases if case.contains in said), self.turns)
        return next((turn for at, turn in enumerate(_unrolled(turns)) if at == index), None)


class _File(_Part):
    models: dict[str, Script]


def load_scripts(path: Path) -> dict[str, Script]:
    """The scripts of a YAML file, or of every `*.yaml` in a directory. Raises `BadScript`."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise BadScript(f"{path}: no *.yaml in it")
    scripts: dict[str, Script] = {}
    for file in files:
        for name, script in _read(file).items():
            if name in scripts:
                raise BadScript(f"{file}: the model {name} is in another file too")
            scripts[name] = script
    return scripts


def script_prices(scripts: Mapping[str, Script]) -> dict[str, ModelPrice]:
    """What each model costs, by its name."""
    return {name: _price(name, script) for name, script in scripts.items()}


def _read(file: Path) -> dict[str, Script]:
    try:
        return _File.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))).models
    except OSError as error:
        raise BadScript(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadScript(f"{file}: no YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise BadScript(f"{file}: {at}: {first['msg']}") from None


def _price(name: str, script: Script) -> ModelPrice:
    dollars = script.prices.model_dump(exclude_none=True)
    rates = {member: round(value * NANOS_PER_USD) for member, value in dollars.items()}
    return ModelPrice(
        provider=SCRIPTED,
        model=name,
        version=f"scripted/{digest(rates)[:12]}",
        rates=Rates(**rates),
        max_input_tokens=script.max_input_tokens,
        max_output_tokens=script.max_output_tokens,
    )


def _unrolled(turns: tuple[Turn, ...]) -> Iterator[Turn]:
    for turn in turns:
        for _ in range(turn.repeat):
            yield turn

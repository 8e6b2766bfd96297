"""Write `domain/price_book.json` from the cost map that the pinned litellm ships.

`python -m gateway.make_price_book` writes it, `--check` only says whether it is what the map gives. The map
is read from the package's files; litellm itself is not imported. A new pin means a new book: the diff is
to be read, since the map also loses models and changes prices.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from domain.prices import BOOK_FILE, digest

MAP_FILE = "litellm/model_prices_and_context_window_backup.json"
BOOK = Path(__file__).parent.parent / "domain" / BOOK_FILE
# Our name of a provider → the map's, and how the map's keys begin before the provider's own model id.
PROVIDERS = {
    "anthropic": ("anthropic", ""),
    "openai": ("openai", ""),
    "gemini": ("gemini", "gemini/"),
    "openrouter": ("openrouter", "openrouter/"),
    "fireworks": ("fireworks_ai", "fireworks_ai/"),
    "dashscope": ("dashscope", "dashscope/"),
    "moonshot": ("moonshot", "moonshot/"),
    "zai": ("zai", "zai/"),
}
MODES = ("chat", "completion", "responses", "embedding")
# Their output is not text alone, and a call's usage does not tell which tokens were which.
OTHER_OUTPUT = ("output_cost_per_audio_token", "output_cost_per_image", "output_cost_per_image_token")
SERVICES = ("flex", "priority", "ultrafast")
# Our rate → the map's key; of cache writes the longer-lived kind has a suffix that differs by vendor.
RATES = {
    "input": ("input_cost_per_token", ""),
    "output": ("output_cost_per_token", ""),
    "cached_input": ("cache_read_input_token_cost", ""),
    "cache_write_5m": ("cache_creation_input_token_cost", ""),
    "cache_write_1h": ("cache_creation_input_token_cost", "_above_1hr"),
    "reasoning": ("output_cost_per_reasoning_token", ""),
}
LONGEST_WRITE = "_above_12hr"
_THRESHOLD = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


def main(arguments: list[str]) -> int:
    """Write or check; the exit status."""
    text = rendered(read_map())
    if arguments == ["--check"]:
        return 0 if BOOK.read_text() == text else 1
    BOOK.write_text(text)
    return 0


def read_map() -> tuple[dict[str, Any], dict[str, Any]]:
    """The map, and where it is from."""
    package = distribution("litellm")
    data = Path(str(package.locate_file(MAP_FILE))).read_bytes()
    source = {
        "package": "litellm",
        "version": package.version,
        "file": MAP_FILE,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return json.loads(data), source


def rendered(read: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str:
    """The book's text: one model a line, so that a diff reads as a list of changed prices."""
    cost_map, source = read
    prices = {provider: dict(_models(cost_map, provider)) for provider in PROVIDERS}
    lines = ["{", f'"source": {json.dumps(source)},', f'"version": "{digest(prices)}",']
    lines += ['"unit": "nano-dollars per million tokens",', '"prices": {']
    for number, (provider, models) in enumerate(prices.items()):
        entries = [f"{json.dumps(model)}: {json.dumps(models[model])}" for model in sorted(models)]
        comma = "," if number < len(prices) - 1 else ""
        lines.append(f'"{provider}": {{\n' + ",\n".join(entries) + f"\n}}{comma}")
    return "\n".join([*lines, "}", "}"]) + "\n"


def _models(cost_map: Mapping[str, Any], provider: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name, prefix = PROVIDERS[provider]
    for key, entry in cost_map.items():
        if entry.get("litellm_provider") != name or entry.get("mode") not in MODES:
            continue
        model = key.removeprefix(prefix)
        # Fireworks knows its models as accounts/…; the map's short names are its own.
        if not key.startswith(prefix) or (provider == "fireworks" and "/" not in model):
            continue
        price = None if any(other in entry for other in OTHER_OUTPUT) else _price(entry)
        if price is not None:
            yield model, price


def _price(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The members of a `ModelPrice`; None when input or output has no price, or 0: both are unknown."""
    standard = _service(entry, "")
    if standard is None:
        return None
    limits = {key: int(entry[key]) for key in ("max_input_tokens", "max_output_tokens") if entry.get(key)}
    services = {name: _service(entry, f"_{name}") for name in SERVICES}
    known = {
        name: _with_long_prompts_of(standard, service)
        for name, service in services.items()
        if service is not None
    }
    return {**limits, **standard, **({"services": known} if known else {})}


def _service(entry: Mapping[str, Any], suffix: str) -> dict[str, Any] | None:
    table = entry.get("tiered_pricing")
    if table is not None:
        return _from_table(entry, table) if not suffix else None
    rates = _rates(entry, suffix)
    if rates is None:
        return None
    matches = [_THRESHOLD.fullmatch(key.removesuffix(suffix)) for key in entry if key.endswith(suffix)]
    thresholds = sorted(int(match[1]) for match in matches if match is not None)
    # What a longer prompt has no price of its own for costs what it costs in a shorter one.
    long_prompts = [
        {"above_prompt_tokens": threshold * 1000, **rates, **higher}
        for threshold in thresholds
        if (higher := _rates(entry, f"_above_{threshold}k_tokens{suffix}")) is not None
    ]
    return {"rates": rates, **({"long_prompts": long_prompts} if long_prompts else {})}


def _with_long_prompts_of(standard: dict[str, Any], service: dict[str, Any]) -> dict[str, Any]:
    """Where a service states no price of long prompts and the model has one: the dearer of the two."""
    if "long_prompts" not in standard or "long_prompts" in service:
        return service
    rates = service["rates"]
    long_prompts = [
        {name: max(rate, rates.get(name, 0)) for name, rate in tier.items()}
        for tier in standard["long_prompts"]
    ]
    return {"rates": rates, "long_prompts": long_prompts}


def _from_table(entry: Mapping[str, Any], table: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A table of prompt lengths: each range is open at its beginning and holds its end."""
    tiers = [_rates({**entry, **tier}, "") for tier in sorted(table, key=lambda tier: tier["range"][0])]
    starts = sorted(int(tier["range"][0]) for tier in table)
    if not tiers or starts[0] != 0 or any(rates is None for rates in tiers):
        return None
    long_prompts = [
        {"above_prompt_tokens": start, **rates}
        for start, rates in zip(starts[1:], tiers[1:], strict=True)
        if rates is not None
    ]
    return {"rates": tiers[0], "long_prompts": long_prompts}


def _rates(entry: Mapping[str, Any], suffix: str) -> dict[str, int] | None:
    found = {
        ours: _nanos_per_million(entry.get(f"{key}{kind}{suffix}")) for ours, (key, kind) in RATES.items()
    }
    found["cache_write_1h"] = found["cache_write_1h"] or _nanos_per_million(
        entry.get(f"cache_creation_input_token_cost{LONGEST_WRITE}{suffix}")
    )
    if entry.get("mode") == "embedding":
        found["output"] = found["input"]  # it has no output; a token of one would not be free
    if found["reasoning"] == found["output"]:
        found["reasoning"] = None
    if found["input"] is None or found["output"] is None:
        return None
    return {name: rate for name, rate in found.items() if rate is not None}


def _nanos_per_million(usd_per_token: float | None) -> int | None:
    """Exact, or `ValueError`. 0 is no price: nothing that is metered is free."""
    if not usd_per_token:
        return None
    rate = Decimal(repr(usd_per_token)) * 10**15
    if rate != rate.to_integral_value():
        raise ValueError(f"{usd_per_token} is not a whole number of nano-dollars per million tokens")
    return int(rate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

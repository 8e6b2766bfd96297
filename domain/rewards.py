"""Reading a verifier's reward exactly (contract 6.4): a typed reward, or what was wrong. Never a made-up 0.

`reward.json` wins when both exist, also when it cannot be read. Rules and their sources:
- A verifier that ended and left no readable reward is a SCORING_ERROR (6.4: a crash or a bad reward), also
  when it wrote no file. INDETERMINATE (4.2, "no verdict recorded") is for a trial of which we cannot tell
  whether its verifier ended; that is the workflow's to say, never this module's.
- The primary reward must be in [0, 1]. Other named numbers of `reward.json` are metrics and need only be
  finite: 6.4 bounds "a reward", and counts beside it (`{"reward": 0.5, "passed": 3}`) are common.
- Stricter than Harbor, which would read a different value than the author meant: booleans, `1_0`,
  non-ASCII digits and repeated keys are refused; so is a byte order mark, as in Harbor.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, NoReturn, cast

from pydantic import BaseModel, ConfigDict

__all__ = ["REWARD_FILE_MAX_BYTES", "Reward", "RewardFailure", "read_reward"]

REWARD_FILE_MAX_BYTES = 256 * 1024
"""Larger files are refused unread: fetch at most one byte more than this."""

HarborException = Literal["RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"]

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BOMS = {
    b"\xef\xbb\xbf": "a UTF-8 byte order mark",
    b"\xff\xfe": "a UTF-16 byte order mark",
    b"\xfe\xff": "a UTF-16 byte order mark",
}
_SHOWN_CHARACTERS = 60


class Reward(BaseModel):
    """`primary` is the value of key `reward`, else the sole value, else None (scored without a reward)."""

    model_config = ConfigDict(frozen=True)

    rewards: dict[str, float]
    primary: float | None
    source: Literal["reward.json", "reward.txt"]


class RewardFailure(BaseModel):
    """Why there is no reward: status SCORING_ERROR, exception `ScoringError`."""

    model_config = ConfigDict(frozen=True)

    message: str
    harbor_exception: HarborException
    """The name Harbor's records carry for the same fault."""


class _Unreadable(Exception):
    """What is wrong with the file, as a clause that follows its name."""

    def __init__(self, clause: str, harbor_exception: HarborException = "VerifierOutputParseError") -> None:
        super().__init__(clause)
        self.clause = clause
        self.harbor_exception: HarborException = harbor_exception


def read_reward(reward_txt: bytes | None, reward_json: bytes | None) -> Reward | RewardFailure:
    """The reward in the raw bytes of the two files; None is an absent file."""
    if reward_json is not None:
        name, data = "reward.json", reward_json
    elif reward_txt is not None:
        name, data = "reward.txt", reward_txt
    else:
        return RewardFailure(
            message="the verifier wrote neither /logs/verifier/reward.txt nor /logs/verifier/reward.json",
            harbor_exception="RewardFileNotFoundError",
        )
    try:
        text = _text(data)
        if name == "reward.json":
            return _from_numbers(_json_numbers(text), "reward.json")
        return _from_numbers({"reward": _plain_number(text)}, "reward.txt")
    except _Unreadable as fault:
        message = f"/logs/verifier/{name} {fault.clause}"
        return RewardFailure(message=message, harbor_exception=fault.harbor_exception)


def _from_numbers(rewards: dict[str, float], source: Literal["reward.json", "reward.txt"]) -> Reward:
    primary = rewards.get("reward")
    if primary is None and len(rewards) == 1:
        primary = next(iter(rewards.values()))
    if primary is not None and not 0 <= primary <= 1:
        raise _Unreadable(f"holds the reward {primary!r}, which is outside [0, 1]")
    return Reward(rewards=rewards, primary=primary, source=source)


def _text(data: bytes) -> str:
    if not data:
        raise _Unreadable("is empty", "RewardFileEmptyError")
    if len(data) > REWARD_FILE_MAX_BYTES:
        raise _Unreadable(f"is larger than {REWARD_FILE_MAX_BYTES} bytes")
    for mark, name in _BOMS.items():
        if data.startswith(mark):
            raise _Unreadable(f"starts with {name}; write plain UTF-8")
    if b"\0" in data:
        raise _Unreadable("holds NUL bytes (UTF-16?); write plain UTF-8")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _Unreadable(f"is not UTF-8 (byte {error.start})") from None
    if not text.strip():
        raise _Unreadable("holds only white space")
    return text


def _plain_number(text: str) -> float:
    stripped = text.strip()
    if len(stripped.splitlines()) > 1:
        raise _Unreadable(f"holds more than one line ({_shown(stripped)}); write one number")
    if stripped.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise _Unreadable(f"holds {stripped}, which is not a finite number")
    if not _NUMBER.fullmatch(stripped):
        raise _Unreadable(f"holds {_shown(stripped)}, which is not a number")
    return _finite(float(stripped), stripped)


def _json_numbers(text: str) -> dict[str, float]:
    try:
        value: Any = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct_keys)
    except RecursionError:
        raise _Unreadable("is nested too deeply; write an object of named numbers") from None
    except ValueError as error:
        raise _Unreadable(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _Unreadable(f"holds {_kind(value)}; write an object of named numbers")
    if not value:
        raise _Unreadable("holds an empty object; write an object of named numbers")
    return {key: _json_number(key, entry) for key, entry in cast("dict[str, Any]", value).items()}


def _json_number(key: str, value: Any) -> float:
    if "\0" in key or any("\ud800" <= character <= "\udfff" for character in key):
        raise _Unreadable(f"has the key {_shown(key)}, which is not storable text")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unreadable(f"holds {_kind(value)} under {_shown(key)}; every value must be a number")
    try:
        return _finite(float(value), f"under {_shown(key)} a number")
    except OverflowError:
        raise _Unreadable(f"holds under {_shown(key)} a number, which is too large to be read") from None


def _finite(number: float, told: str) -> float:
    """The number, with -0.0 as 0.0. JSON's 1e400 and text's alike are too large, not infinite."""
    if not math.isfinite(number):
        raise _Unreadable(f"holds {_cut(told)}, which is too large to be read")
    return number + 0.0


def _no_constant(name: str) -> NoReturn:
    raise _Unreadable(f"holds {name}, which is not a finite number")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [key for key, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _Unreadable(f"has the key {_shown(repeated)} more than once")
    return table


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return f"the text {_shown(value)}"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else "a bare number"


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"

"""A reward is read exactly, or its failure says what was wrong; nothing becomes a zero by itself."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.rewards import REWARD_FILE_MAX_BYTES, Reward, RewardFailure, read_reward


def reward(txt: bytes | None = None, json: bytes | None = None) -> Reward:
    outcome = read_reward(txt, json)
    assert isinstance(outcome, Reward), outcome
    return outcome


def failure(txt: bytes | None = None, json: bytes | None = None) -> RewardFailure:
    outcome = read_reward(txt, json)
    assert isinstance(outcome, RewardFailure), outcome
    return outcome


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"1", 1.0),
        (b"0\n", 0.0),
        (b" 0.25 \r\n", 0.25),
        (b"\n\n1.0\n\n", 1.0),
        (b".5", 0.5),
        (b"1.", 1.0),
        (b"+1e-3", 0.001),
        (b"1E0", 1.0),
    ],
)
def test_one_number_in_reward_txt(text: bytes, value: float) -> None:
    assert reward(text) == Reward(rewards={"reward": value}, primary=value, source="reward.txt")


def test_minus_zero_is_zero() -> None:
    assert math.copysign(1, reward(b"-0.0").rewards["reward"]) == 1


@pytest.mark.parametrize(
    ("text", "rewards", "primary"),
    [
        (b'{"reward": 1}', {"reward": 1.0}, 1.0),
        (b'{"accuracy": 0.5}', {"accuracy": 0.5}, 0.5),
        (b'{"reward": 0, "tests": 12, "loss": -3.5}', {"reward": 0.0, "tests": 12.0, "loss": -3.5}, 0.0),
        (b'{"a": 0.5, "b": 7}', {"a": 0.5, "b": 7.0}, None),
        (' {"größe": 1e-1}\n'.encode(), {"größe": 0.1}, 0.1),
    ],
)
def test_named_numbers_in_reward_json(text: bytes, rewards: dict[str, float], primary: float | None) -> None:
    assert reward(json=text) == Reward(rewards=rewards, primary=primary, source="reward.json")


def test_reward_json_wins_when_both_exist_even_when_it_is_broken() -> None:
    assert reward(b"1", b'{"reward": 0.5}').primary == 0.5
    assert "reward.json is empty" in failure(b"1", b"").message
    assert "reward.json is not JSON" in failure(b"1", b"{").message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\n \t", "only white space"),
        (b"\xef\xbb\xbf1", "UTF-8 byte order mark"),
        ("1".encode("utf-16"), "UTF-16 byte order mark"),
        ("1".encode("utf-16-be"), "NUL bytes (UTF-16?)"),
        (b"\xff1", "not UTF-8 (byte 0)"),
        (b"nan", "holds nan, which is not a finite number"),
        (b"-Infinity", "not a finite number"),
        (b"1e400", "holds 1e400, which is too large"),
        (b"1,0", "holds '1,0', which is not a number"),
        (b"1_0", "not a number"),
        ("１".encode(), "not a number"),
        (b"0x1", "not a number"),
        (b"true", "not a number"),
        (b"1 0", "not a number"),
        (b"50%", "not a number"),
        (b"0\n1\n", "more than one line"),
        (b"0\x0c1", "more than one line"),
        (b"1.5", "1.5, which is outside [0, 1]"),
        (b"-0.1", "outside [0, 1]"),
        (b"1.0000000000000002", "outside [0, 1]"),
        (b"1" * 1_000_000, f"larger than {REWARD_FILE_MAX_BYTES} bytes"),
        (b"x" * 1000, "…"),
        (b'{"reward": 1}', "not a number"),
    ],
)
def test_a_bad_reward_txt_says_what_is_wrong(text: bytes, told: str) -> None:
    wrong = failure(text)
    assert told in wrong.message
    assert wrong.message.startswith("/logs/verifier/reward.txt ")
    assert len(wrong.message) < 200
    assert wrong.harbor_exception == "VerifierOutputParseError"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"  ", "only white space"),
        (b"\xef\xbb\xbf{}", "UTF-8 byte order mark"),
        (json.dumps({"reward": 1}).encode("utf-16"), "UTF-16"),
        (b"1", "holds a bare number"),
        (b'"1"', "holds the text '1'"),
        (b"null", "holds null"),
        (b"true", "holds a boolean"),
        (b"[1]", "holds a list"),
        (b"{}", "empty object"),
        (b'{"reward": null}', "null under 'reward'"),
        (b'{"reward": true}', "a boolean under 'reward'"),
        (b'{"reward": "1"}', "the text '1' under 'reward'"),
        (b'{"reward": [1]}', "a list under 'reward'"),
        (b'{"reward": {"a": 1}}', "an object under 'reward'"),
        (b'{"reward": 1, "x": false}', "a boolean under 'x'"),
        (b'{"reward": NaN}', "NaN, which is not a finite number"),
        (b'{"reward": -Infinity}', "-Infinity, which is not"),
        (b'{"reward": 1, "x": 1e400}', "under 'x' a number, which is too large"),
        (b'{"reward": 1' + b"0" * 400 + b"}", "too large"),
        (b'{"reward": 1' + b"0" * 9000 + b"}", "is not JSON"),
        (b'{"reward": 0, "reward": 1}', "'reward' more than once"),
        (b'{"reward": 1,0}', "is not JSON"),
        (b'{"reward": 1}{"reward": 1}', "is not JSON"),
        (b'{"reward": 2}', "2.0, which is outside [0, 1]"),
        (b'{"score": -1}', "outside [0, 1]"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"\\u0000": 1}', "not storable"),
        (b'{"\\ud800": 1}', "not storable"),
        (b'{"reward": 1' + b" " * 1_000_000 + b"}", "larger than"),
    ],
)
def test_a_bad_reward_json_says_what_is_wrong(text: bytes, told: str) -> None:
    wrong = failure(json=text)
    assert told in wrong.message
    assert wrong.message.startswith("/logs/verifier/reward.json ")
    wrong.message.encode()
    assert wrong.harbor_exception == "VerifierOutputParseError"


def test_an_empty_file_and_no_file_have_harbors_names() -> None:
    assert failure(b"").harbor_exception == "RewardFileEmptyError"
    assert failure(json=b"").harbor_exception == "RewardFileEmptyError"
    assert failure().harbor_exception == "RewardFileNotFoundError"
    assert "neither" in failure().message


@given(st.binary(max_size=60))
def test_no_bytes_become_a_zero_that_they_do_not_say(data: bytes) -> None:
    outcome = read_reward(data, None)
    if isinstance(outcome, Reward):
        assert outcome.primary is not None
        assert float(data.decode()) == outcome.primary
        assert 0 <= outcome.primary <= 1


_VALUES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3)


@given(st.dictionaries(st.text(max_size=3) | st.just("reward"), _VALUES, max_size=3))
def test_json_values_are_kept_or_refused_never_changed(table: dict[str, object]) -> None:
    outcome = read_reward(None, json.dumps(table).encode())
    if isinstance(outcome, Reward):
        assert outcome.rewards == table
        assert all(type(value) in (int, float) for value in table.values())

"""The server secret: one file, ours alone, and never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from store.server_secret import BadServerSecret, ServerSecret, make_secret_file
from store.settings import StoreSettings


def settings(home: Path, monkeypatch: pytest.MonkeyPatch, secret_key: str = "") -> StoreSettings:
    monkeypatch.setenv("EVOLVE_HOME", str(home))
    monkeypatch.setenv("EVOLVE_DATABASE_URL", "postgresql:///x")
    monkeypatch.setenv("EVOLVE_SECRET_KEY", secret_key)
    return StoreSettings.model_validate({})


def test_the_file_is_made_once_and_only_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_secret_file(tmp_path)
    text = (tmp_path / "secret.key").read_text()
    assert not make_secret_file(tmp_path)
    assert (tmp_path / "secret.key").read_text() == text
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
    ServerSecret.of(settings(tmp_path, monkeypatch))


def test_the_variable_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_secret_file(tmp_path)
    text = "x" * 32
    secret = ServerSecret.of(settings(tmp_path, monkeypatch, text))
    assert secret.derive("virtual-keys") == ServerSecret(text).derive("virtual-keys")


def test_purposes_have_keys_of_their_own() -> None:
    secret = ServerSecret("x" * 32)
    assert len(secret.derive("virtual-keys")) == 32
    assert secret.derive("virtual-keys") != secret.derive("provider-keys")
    assert secret.derive("virtual-keys") != ServerSecret("y" * 32).derive("virtual-keys")


def test_an_unusable_secret_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadServerSecret, match=r"secret\.key does not exist"):
        ServerSecret.of(settings(tmp_path, monkeypatch))
    make_secret_file(tmp_path)
    (tmp_path / "secret.key").chmod(0o640)
    with pytest.raises(BadServerSecret, match="mode 640"):
        ServerSecret.of(settings(tmp_path, monkeypatch))
    with pytest.raises(BadServerSecret, match="fewer than 32"):
        ServerSecret("short")


def test_the_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "canary" * 8
    secret = ServerSecret.of(settings(tmp_path, monkeypatch, text))
    assert "canary" not in repr(secret) + str(secret) + repr(settings(tmp_path, monkeypatch, text))

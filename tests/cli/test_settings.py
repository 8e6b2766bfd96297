"""Settings are read from `EVOLVE_*`, follow `EVOLVE_HOME`, and never show a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from activities.settings import WorkerSettings
from api.settings import ApiSettings
from gateway.settings import GatewaySettings

URL = "postgresql://evolve:hunter2@/evolve"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVOLVE_HOME", str(tmp_path))
    monkeypatch.setenv("EVOLVE_DATABASE_URL", URL)


def test_paths_follow_home(tmp_path: Path) -> None:
    assert ApiSettings().blob_url == f"file://{tmp_path}/blobs"
    assert GatewaySettings().gateway_socket == tmp_path / "run/gateway/gateway.sock"
    assert WorkerSettings().gateway_socket == GatewaySettings().gateway_socket
    assert WorkerSettings().state_dir == tmp_path / "state"


def test_what_is_set_wins_and_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOLVE_BLOB_URL", "s3://bucket/prefix")
    monkeypatch.setenv("EVOLVE_API_PORT", "9000")
    monkeypatch.setenv("EVOLVE_TEMPORAL_ADDRESS", "")
    settings = ApiSettings()
    assert (settings.blob_url, settings.api_port) == ("s3://bucket/prefix", 9000)
    assert settings.temporal_address == "127.0.0.1:7233"


def test_the_machine_is_offered_whole_unless_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings().host_cpus >= 1
    assert WorkerSettings().host_memory_mb > 100
    monkeypatch.setenv("EVOLVE_HOST_CPUS", "1.5")
    assert WorkerSettings().host_cpus == 1.5


def test_plugins_are_import_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOLVE_PROVIDER_PLUGINS", "one.module:make, two:Provider")
    assert WorkerSettings().provider_plugins == ("one.module:make", "two:Provider")
    monkeypatch.setenv("EVOLVE_PROVIDER_PLUGINS", "one.module")
    with pytest.raises(ValidationError, match=r"one\.module.*module:factory"):
        WorkerSettings()


def test_a_missing_database_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVOLVE_DATABASE_URL")
    with pytest.raises(ValidationError, match="database_url"):
        ApiSettings()


def test_a_secret_is_not_in_the_text_of_settings() -> None:
    settings = ApiSettings()
    assert "hunter2" not in repr(settings) + settings.model_dump_json()


def test_upstreams_of_ones_own_are_named_and_known_providers_only_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ApiSettings().served_names() == frozenset()
    upstreams = '{"lab": "http://lab:8000", "openai": "http://proxy:1"}'
    monkeypatch.setenv("EVOLVE_UPSTREAMS", upstreams)
    monkeypatch.setenv("EVOLVE_SCRIPTED_UPSTREAM", str(tmp_path))
    assert ApiSettings().job_rules().upstreams == {"lab", "scripted"}
    assert WorkerSettings().job_rules() == ApiSettings().job_rules()
    monkeypatch.setenv("EVOLVE_UPSTREAMS", "[]")
    with pytest.raises(ValidationError, match="upstreams"):
        ApiSettings()

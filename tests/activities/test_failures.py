"""What an activity's failure means to Temporal: tried again, or final and typed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from activities.bundles import AgentInstallFailed
from activities.failures import GOOD_FOR_SEC, FailureCount, is_transient, translate
from activities.npm_registry import BundleUnavailable
from activities.own_agents import AgentBuildCut, AgentBuildFailed
from domain.causes import INSTALL_FAILURES
from domain.errors import InfrastructureFailure, SandboxDeath
from store.blobs import Blobs
from store.outages import is_database_away


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "evolve-test", str(path)), check=True)
    yield path
    subprocess.run(("umount", str(path)), check=True)


@pytest.mark.root
async def test_a_full_disk_is_waited_for(small_disk: Path) -> None:
    with pytest.raises(Exception, match="No space left on device") as full:
        await Blobs(f"file://{small_disk}").put("trials/t/out", bytes(2 << 20))
    assert is_transient(full.value)
    assert not translate(full.value, tries=100).non_retryable


async def test_a_blob_that_is_not_there_is_not_waited_for(blobs: Blobs) -> None:
    with pytest.raises(FileNotFoundError) as absent:
        await blobs.get("trials/t/out")
    assert not is_transient(absent.value)


def test_a_connection_that_postgres_left_in_the_middle_of_a_word_is_an_outage() -> None:
    """Seen in a storm: the API answered 500 to what it should have had asked again."""
    error = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
    assert is_transient(error)
    assert is_database_away(error)


def test_a_failure_of_ours_is_final_and_says_its_class() -> None:
    final = translate(SandboxDeath("the box is gone"), tries=1)
    assert final.non_retryable
    assert final.details[0]["signature"] == "sandbox_death"


@pytest.mark.parametrize("error", [AgentInstallFailed, BundleUnavailable, AgentBuildFailed, AgentBuildCut])
def test_what_keeps_an_agent_out_of_its_box_is_told_by_its_code(error: type[InfrastructureFailure]) -> None:
    assert translate(error("not today"), tries=1).details[0]["code"] in INSTALL_FAILURES


def test_failures_are_counted_in_a_row_and_not_by_what_is_no_failure() -> None:
    count, key = FailureCount(), ("run", "1")
    assert [count.add(key, lasted_sec=1) for _ in range(3)] == [1, 2, 3]
    assert count.add(key, lasted_sec=GOOD_FOR_SEC) == 1, "it went well for a while"
    assert count.add(("run", "2"), lasted_sec=1) == 1
    count.forget(key)
    assert count.add(key, lasted_sec=1) == 1

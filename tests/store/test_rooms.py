"""Room on a host, given from an agent's box to its verifier's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from domain.errors import ProviderCreateFailure
from domain.vocabulary import AttemptPhase
from store.database import Database, now
from store.fences import Fence, Fenced
from store.hosts import (
    Host,
    HostChoice,
    Room,
    drop_host,
    leased_boxes,
    leased_host,
    list_hosts,
    lost_trials,
    renew_host,
    reserve_room,
)
from store.rooms import exchange_room
from store.settle import settle
from tests.finished_jobs import accept, publish, settlement, trial_ids


@dataclass(frozen=True)
class Trial:
    """One whose boxes are admitted to the host `here`."""

    db: Database
    job_id: str
    trial_id: str

    @property
    def agents(self) -> str:
        return f"{self.trial_id}-agent"

    def room(self, name: str, memory_mb: int) -> Room:
        return Room(name, "docker", self.trial_id, 1, cpus=1, memory_mb=memory_mb, host_id="here")

    async def place(self, memory_mb: int = 1000) -> HostChoice:
        """Room for the agent's box on whichever host."""
        room = replace(self.room(self.agents, memory_mb), host_id=None)
        async with self.db.transaction() as connection:
            return await reserve_room(connection, room, 1)

    def fence(self, try_number: int = 1) -> Fence:
        return Fence(self.job_id, self.trial_id, 1, AttemptPhase.VERIFY, try_number)

    async def reserve(self) -> bool:
        """Whether there is room for the agent's box."""
        async with self.db.transaction() as connection:
            return (await reserve_room(connection, self.room(self.agents, 1000), 1)).waiting_for is None

    async def exchange(self, memory_mb: int = 1000, try_number: int = 1) -> HostChoice | None:
        """Ask for the verifier's, in place of it."""
        wanted = self.room(f"{self.trial_id}-verifier", memory_mb)
        return await exchange_room(self.db, self.fence(try_number), self.agents, wanted, 1)

    async def must_wait(self, memory_mb: int) -> bool:
        choice = await self.exchange(memory_mb)
        assert choice is not None
        return choice.waiting_for is not None

    async def leased(self) -> list[str]:
        return [lease["name"] for lease in await leased_boxes(self.db, self.trial_id, 1)]


@pytest.fixture
async def trials(db: Database) -> list[Trial]:
    """Three, of which the boxes of two have room on their host: it has 2000 MB."""
    for name, memory in (("here", 2000), ("elsewhere", 9000)):
        await renew_host(
            db,
            Host(
                id=name, providers={"docker": {"ok": True}}, default_provider="docker", default_reason="",
                queue=name, follow_queue=name, cpus=8, memory_mb=memory, code_version="1",
                lease_expires_at=now(),
            ),
        )  # fmt: skip
    await publish(db, "alpha", "beta", "gamma")
    job_id = await accept(db)
    return [Trial(db, job_id, trial_id) for trial_id in await trial_ids(db, job_id)]


async def test_a_full_host_still_lets_each_trial_go_on_to_its_verifier(trials: list[Trial]) -> None:
    a, b, c = trials
    assert await a.reserve()
    assert await b.reserve()
    assert not await c.reserve()
    for trial in (a, b):
        assert not await trial.must_wait(1000)
    assert not await c.reserve()


async def test_a_larger_verifier_waits_without_holding_anything(trials: list[Trial]) -> None:
    a, b, _ = trials
    await a.reserve()
    await b.reserve()
    assert await a.must_wait(1500)
    assert await a.leased() == []
    assert not await b.must_wait(500)
    assert not await a.must_wait(1500)
    assert not await a.must_wait(1500)


async def test_it_stays_on_its_host_and_what_never_fits_there_is_refused(trials: list[Trial]) -> None:
    await trials[0].reserve()
    with pytest.raises(ProviderCreateFailure, match="3000 MB"):
        await trials[0].exchange(3000)


async def test_an_attempt_is_found_by_whichever_box_it_has(trials: list[Trial]) -> None:
    trial = trials[0]
    await trial.reserve()
    assert (await leased_host(trial.db, trial.agents))["id"] == "here"
    await trial.exchange()
    assert (await leased_host(trial.db, trial.agents))["id"] == "here"
    assert await trial.leased() == [f"{trial.trial_id}-verifier"]


async def test_a_worker_that_was_away_takes_no_room_for_a_trial_that_is_over(trials: list[Trial]) -> None:
    trial = trials[0]
    await trial.reserve()
    end = Fence(trial.job_id, trial.trial_id, 1, AttemptPhase.PERSIST, 1)
    await settle(trial.db, end, settlement(1.0))
    with pytest.raises(Fenced):
        await trial.exchange()
    assert await trial.leased() == [trial.agents]


async def test_nor_in_the_place_of_the_try_that_followed_its_own(trials: list[Trial]) -> None:
    trial = trials[0]
    await trial.exchange(try_number=2)
    with pytest.raises(Fenced):
        await trial.exchange(try_number=1)


async def go_away(db: Database, *host_ids: str, minutes: int = 1) -> None:
    """Their leases expired so long ago."""
    pool = await db.pool()
    await pool.execute(
        "UPDATE hosts SET lease_expires_at = now() - make_interval(mins => $2) WHERE id = ANY($1)",
        host_ids,
        minutes,
    )


async def test_no_trial_is_placed_on_a_host_that_is_away_while_another_lives(trials: list[Trial]) -> None:
    a, b, c = trials
    await go_away(a.db, "elsewhere")
    assert [(await trial.place()).host_id for trial in (a, b)] == ["here", "here"]
    assert (await c.place()).waiting_for == "1000 MB and 1 cpus on here"


async def test_what_only_a_host_that_is_away_could_hold_is_refused(trials: list[Trial]) -> None:
    await go_away(trials[0].db, "elsewhere")
    with pytest.raises(ProviderCreateFailure, match="9000 MB"):
        await trials[0].place(9000)


async def test_where_no_host_lives_one_that_is_away_is_waited_for(trials: list[Trial]) -> None:
    trial = trials[0]
    await go_away(trial.db, "here", "elsewhere")
    assert (await trial.place()).host_id == "elsewhere"


async def test_a_verifier_stays_on_its_host_while_that_is_away(trials: list[Trial]) -> None:
    trial = trials[0]
    await trial.reserve()
    await go_away(trial.db, "here")
    choice = await trial.exchange()
    assert choice is not None
    assert choice.host_id == "here"


async def lost(db: Database) -> list[tuple[str, str]]:
    return [(row["trial_id"], row["host_id"]) for row in await lost_trials(db)]


async def test_a_trial_is_lost_when_its_host_is_away_for_long_and_another_serves_its_provider(
    trials: list[Trial],
) -> None:
    trial = trials[0]
    await trial.reserve()
    await go_away(trial.db, "here", minutes=9)
    assert await lost(trial.db) == []
    await go_away(trial.db, "here", minutes=11)
    assert await lost(trial.db) == [(trial.trial_id, "here")]
    await go_away(trial.db, "elsewhere")
    assert await lost(trial.db) == []


async def test_a_host_of_other_providers_takes_no_trials_from_one_that_is_away(trials: list[Trial]) -> None:
    trial = trials[0]
    await trial.reserve()
    await go_away(trial.db, "here", minutes=60)
    pool = await trial.db.pool()
    await pool.execute(
        "UPDATE hosts SET providers = $1 WHERE id = 'elsewhere'",
        {"docker": {"ok": False, "reason": "no engine"}, "local": {"ok": True}},
    )
    assert await lost(trial.db) == []


async def test_a_trial_that_has_given_its_box_back_and_must_still_close_there_is_lost_too(
    trials: list[Trial],
) -> None:
    trial = trials[0]
    await trial.reserve()
    pool = await trial.db.pool()
    await pool.execute("UPDATE box_leases SET state = 'gone', gone_at = now()")
    await go_away(trial.db, "here", minutes=11)
    assert await lost(trial.db) == [(trial.trial_id, "here")]


async def test_a_host_that_lives_is_not_dropped(trials: list[Trial]) -> None:
    db = trials[0].db
    assert await drop_host(db, "here") is False
    assert await drop_host(db, "nowhere") is None
    assert [row["id"] for row in await list_hosts(db)] == ["elsewhere", "here"]


async def test_the_trials_of_a_dropped_host_are_lost_though_nobody_else_lives(trials: list[Trial]) -> None:
    a, b, _ = trials
    await a.reserve()
    await b.reserve()
    end = Fence(b.job_id, b.trial_id, 1, AttemptPhase.PERSIST, 1)
    await settle(b.db, end, settlement(1.0))
    await go_away(a.db, "here", "elsewhere")
    assert [row["n_boxes"] for row in await list_hosts(a.db)] == [0, 2]
    assert await drop_host(a.db, "here")
    assert await lost(a.db) == [(a.trial_id, "here")]
    assert (await a.leased(), await b.leased()) == ([a.agents], [])


async def test_a_placement_does_not_read_what_was_ever_leased(trials: list[Trial]) -> None:
    pool = await trials[0].db.pool()
    await pool.execute(
        "INSERT INTO box_leases (name, host_id, provider, trial_id, attempt_number, cpus, memory_mb, state,"
        " reserved_at, gone_at) SELECT 'old-' || n, 'here', 'docker', 'old-' || n, 1, 1, 1, 'gone', now(),"
        " now() FROM generate_series(1, 5000) n"
    )
    await pool.execute("ANALYZE box_leases")
    async with trials[0].db.transaction() as connection:
        await reserve_room(connection, trials[0].room(trials[0].agents, 1000), 1)
        n_read = await connection.fetchval(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'box_leases'"
        )
    assert n_read < 10

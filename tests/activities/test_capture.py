"""What is kept of a trial, over a real store: byte for byte, in pieces, without secrets."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities import capture as capture_module
from activities import following, kept_trees
from activities.capture import Capture
from activities.harnesses.base import HomeRules, SessionCopy
from activities.home_capture import keep_home
from activities.masks import MaskedOutput, SecretMask, key_secrets, masked_in_place
from activities.sandboxes.process_poll import Chunk, ExitStatus
from activities.traces.keep import keep_trace
from activities.traces.live import Stream
from domain.errors import SandboxDeath
from domain.vocabulary import AttemptPhase
from store.blobs import Blobs
from store.database import Database
from store.fences import Fence
from store.spend import reserve, settle_call
from store.streams import add_trace_events, append_chunk
from store.traces import stored_events
from tests.finished_jobs import accept, publish
from tests.store.money_factory import SECRET, measured, minted, new_call

KEY = "evk-0123456789abcdef"
STREAMS: dict[Stream, str] = {"out": "agent/stdout", "err": "agent/stderr"}
CODEX = (Path(__file__).parents[1] / "fixtures" / "streams" / "codex.jsonl").read_bytes()
RULES = HomeRules(
    captured=(".codex", ".codex.json", ".absent"),
    excluded=(".codex/.tmp/plugins/*", "*/auth.json"),
    session_copies=(SessionCopy(".codex/sessions", "sessions"),),
)


class TarBox:
    """A box that gives trees, by absolute path: a file's bytes, or names below with bytes or a link."""

    workdir = "/app"

    def __init__(self, trees: dict[str, bytes | dict[str, Any]], is_gone: bool = False) -> None:
        self.trees = trees
        self.is_gone = is_gone
        self.n_given = 0

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        if self.is_gone:
            raise SandboxDeath("destroyed")
        if path not in self.trees:
            raise FileNotFoundError(path)
        data = tar_of(self.trees[path])
        for start in range(0, len(data), 10_240):
            self.n_given += 1
            yield data[start : start + 10_240]


def box_of(trees: dict[str, bytes | dict[str, Any]], *, is_gone: bool = False) -> Any:
    """As much of a `Box` as a capture needs."""
    return TarBox(trees, is_gone)


def tar_of(tree: bytes | dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        folder: dict[str, Any] = {".": (tarfile.DIRTYPE, "")}
        for name, content in ({"its-name": tree} if isinstance(tree, bytes) else {**folder, **tree}).items():
            member = tarfile.TarInfo(name)
            member.mode = 0o755 if name.endswith(".sh") else 0o600
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)
    return packed.getvalue()


@pytest.fixture
async def attempt(db: Database) -> Fence:
    await publish(db, "alpha")
    job_id = await accept(db)
    trial_id = await (await db.pool()).fetchval("SELECT id FROM trials WHERE job_id = $1 LIMIT 1", job_id)
    return Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1)


@pytest.fixture
def new_capture(db: Database, blobs: Blobs, attempt: Fence) -> Callable[..., Capture]:
    def make(**secrets: str) -> Capture:
        context: Any = SimpleNamespace(
            attempt=SimpleNamespace(trial_id=attempt.trial_id, attempt_number=1),
            harness=SimpleNamespace(home_rules=RULES, parser_name="codex"),
            arm=SimpleNamespace(name="codex", model_name="gpt-6-luna", spends=True),
            task=SimpleNamespace(artifacts=()),
        )
        hands: Any = SimpleNamespace(db=db, blobs=blobs)
        return Capture(hands, context, attempt, secrets)

    return make


async def kept(capture: Capture) -> dict[str, bytes]:
    """What was kept, by path, each checked against its record."""
    found = {}
    for file in capture.files:
        found[file.path] = await capture.hands.blobs.get(file.blob_key)
        assert file.size_bytes == len(found[file.path])
        assert file.sha256 == hashlib.sha256(found[file.path]).hexdigest()
    return found


async def test_a_tree_is_kept_file_by_file(new_capture: Callable[..., Capture]) -> None:
    large = bytes(range(256)) * 8_192
    tree = {
        "a.txt": b"text", "run.sh": b"#!", "big": large, "../out": b"no", "b": (tarfile.SYMTYPE, "a.txt"),
        "more/of-a": (tarfile.LNKTYPE, "a.txt"), "loop": (tarfile.LNKTYPE, "b"), "d": (tarfile.DIRTYPE, ""),
    }  # fmt: skip
    capture = new_capture()
    await capture.keep_tree(box_of({"/x": tree, "/one": b"alone"}), "/x", "agent")
    assert await kept(capture) == {
        "agent/a.txt": b"text", "agent/run.sh": b"#!", "agent/big": large, "agent/more/of-a": b"text",
    }  # fmt: skip
    assert {file.path: file.mode for file in capture.files}["agent/run.sh"] == 0o755
    single = new_capture()
    await single.keep_tree(box_of({"/one": b"alone"}), "/one", "artifacts/one")
    await single.keep_tree(box_of({}), "/absent", "artifacts/absent")
    assert (await kept(single), single.left_out) == ({"artifacts/one": b"alone"}, [])


async def test_of_a_tree_that_is_too_large_the_beginning_is_kept(
    new_capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "TREE_MAX_BYTES", 30_000)
    box = box_of({"/x": {"first": b"1" * 5_000, "second": b"2" * 500_000, "third": b"3"}})
    capture = new_capture()
    await capture.keep_tree(box, "/x", "agent")
    assert set(await kept(capture)) == {"agent/first"}
    assert capture.left_out == ["/x: what came after 30000 bytes was left out"]
    assert box.n_given == 3


async def test_memory_stays_flat_whatever_a_box_gives(new_capture: Callable[..., Capture]) -> None:
    box = box_of({"/x": {"big": b"x" * 24_000_000}})
    capture = new_capture(KEY=KEY)
    tar = tar_of(box.trees["/x"])

    async def pieces(_: str) -> AsyncIterator[bytes]:
        for start in range(0, len(tar), 65_536):
            yield tar[start : start + 65_536]

    box.get_tar = pieces
    tracemalloc.start()
    await capture.keep_tree(box, "/x", "agent")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
    assert capture.files[0].size_bytes == 24_000_000


async def test_a_stream_is_kept_byte_for_byte_and_its_end_is_given(
    db: Database, attempt: Fence, new_capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"\xff" * 3_000_000, b"\0middle", b"end"]
    at = 0
    for piece in pieces:
        await append_chunk(db, attempt, "agent/stdout", at, piece)
        at += len(piece)
    capture = new_capture()
    assert (await capture.keep_stream("agent/stdout", "agent/codex.txt"))[-11:] == b"\xff\0middleend"
    assert await capture.keep_stream("agent/stderr", "agent/stderr.log") == b""
    assert await kept(capture) == {"agent/codex.txt": b"".join(pieces)}
    assert capture.left_out == []
    monkeypatch.setattr(following, "STREAM_MAX_BYTES", at)
    await capture.keep_stream("agent/stdout", "agent/codex.txt")
    assert capture.left_out == [f"agent/codex.txt: what came after {at} bytes"]


async def test_secrets_are_masked_and_counted(
    db: Database, attempt: Fence, new_capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_trees, "PIECE_BYTES", 1_000)
    token = 'se"cret\nwörd'
    text = f"{KEY} {json.dumps(token)} {json.dumps(token, ensure_ascii=False)} {token}".encode()
    await append_chunk(db, attempt, "agent/stdout", 0, text)
    box = box_of({"/logs/agent": {"small": text, "database": b"\0" + KEY.encode(),
                                  "large": b"." * 990 + KEY.encode() + b"." * 2_000}})  # fmt: skip
    capture = new_capture(KEY=KEY, TOKEN=token, SHORT="a")
    end = await capture.keep_stream("agent/stdout", "agent/codex.txt")
    await capture.keep_tree(box, "/logs/agent", "agent")
    shown = b'[secret:KEY] "[secret:TOKEN]" "[secret:TOKEN]" [secret:TOKEN]'
    assert end == shown
    assert await kept(capture) == {
        "agent/codex.txt": shown,
        "agent/small": shown,
        "agent/database": b"\0[secret:KEY]********",
        "agent/large": b"." * 990 + b"[secret:KEY]" + b"." * 2_000,
    }
    assert capture.masked == {"KEY": 4, "TOKEN": 6}


def test_a_secret_is_found_however_its_stream_is_cut() -> None:
    data = f"a{KEY}b evk-0123 {KEY}{KEY} evk-".encode()
    expected = b"a[secret:KEY]b evk-0123 [secret:KEY][secret:KEY] evk-"
    for size in range(1, len(data) + 1):
        output = MaskedOutput(SecretMask({"KEY": KEY}))
        pieces = [output.take(at, data[at : at + size]) for at in range(0, len(data), size)]
        told = [piece for piece in (*pieces, output.end()) if piece is not None]
        assert b"".join(piece.data for piece in told) == expected
        assert [piece.offset for piece in told] == [0, *(piece.end for piece in told[:-1])]
        assert told[-1].end == len(data)


async def test_output_is_masked_before_it_is_stored_and_no_offset_moves() -> None:
    async def follow() -> AsyncIterator[Chunk | ExitStatus]:
        yield Chunk("out", 100, f"key={KEY[:10]}".encode())
        yield Chunk("err", 0, KEY.encode() * 2)
        yield Chunk("out", 114, f"{KEY[10:]}\nevk-".encode())
        yield ExitStatus(0, False, False, None, None)

    given = [item async for item in masked_in_place(follow(), SecretMask({"KEY": KEY}))]
    assert given == [
        Chunk("out", 100, b"key="),
        Chunk("err", 0, b"[secret:KEY]********" * 2),
        Chunk("out", 104, b"[secret:KEY]********\n"),
        Chunk("out", 125, b"evk-"),
        ExitStatus(0, False, False, None, None),
    ]
    kept = SecretMask({"KEY": KEY})
    assert kept.text(b"key=[secret:KEY]********\n") == b"key=[secret:KEY]\n"
    assert kept.counts == {"KEY": 1}
    assert SecretMask({"A_LONG_NAME": "12345678"}).in_place(b"a12345678b") == b"a********b"


async def test_an_attempts_keys_are_among_its_secrets(db: Database) -> None:
    plan = await minted(db)
    judge = await minted(db, trial_id=plan.trial_id, role="judge")
    secrets = await key_secrets(db, SECRET, plan.trial_id, 1)
    assert sorted(secrets) == ["EVOLVE_AGENT_KEY", "EVOLVE_JUDGE_KEY"]
    assert plan.key_id in secrets["EVOLVE_AGENT_KEY"]
    assert judge.key_id in secrets["EVOLVE_JUDGE_KEY"]
    assert await key_secrets(db, SECRET, plan.trial_id, 2) == {}


async def test_a_home_is_kept_at_its_real_names_with_its_record(new_capture: Callable[..., Capture]) -> None:
    tree = {
        "config.toml": b"model = 1", "sessions/2026/rollout.jsonl": b"{}", "run.sh": b"#!",
        ".tmp/plugins/p/q": b"cache", ".tmp/other": b"kept", "auth.json": b"secret",
        "link": (tarfile.SYMTYPE, "/etc/passwd"),
    }  # fmt: skip
    box = box_of({"/root/.codex": tree, "/root/.codex.json": b"{}"})
    capture = new_capture()
    await keep_home(capture, box, "/root")
    files = await kept(capture)
    record = json.loads(files.pop("agent/agent-home.json"))
    assert files == {
        "agent/.codex/config.toml": b"model = 1", "agent/.codex/run.sh": b"#!", "agent/.codex.json": b"{}",
        "agent/.codex/sessions/2026/rollout.jsonl": b"{}", "agent/.codex/.tmp/other": b"kept",
        "agent/sessions/2026/rollout.jsonl": b"{}",
    }  # fmt: skip
    assert record["home"] == "/root"
    assert record["excluded"] == [".codex/.tmp/plugins", ".codex/auth.json"]
    assert record["skipped"] == [
        {"path": ".codex/link", "reason": "a symbolic link to /etc/passwd"},
    ]
    assert [(entry["path"], entry["size"], entry["mode"]) for entry in record["files"]] == [
        (".codex.json", 2, "0600"), (".codex/.tmp/other", 4, "0600"), (".codex/config.toml", 9, "0600"),
        (".codex/run.sh", 2, "0755"), (".codex/sessions/2026/rollout.jsonl", 2, "0600"),
    ]  # fmt: skip
    assert record["files"][0]["sha256"] == hashlib.sha256(b"{}").hexdigest()


async def test_a_home_that_is_gone_is_told(new_capture: Callable[..., Capture]) -> None:
    capture = new_capture()
    await keep_home(capture, box_of({}, is_gone=True), "/root")
    assert capture.left_out == ["the agent's home: the box is gone: destroyed"]
    assert set(await kept(capture)) == {"agent/agent-home.json"}


async def test_a_trace_is_completed_and_its_trajectory_kept(
    db: Database, attempt: Fence, new_capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died with output stored of which it had written no row."""
    await add_trace_events(db, attempt.trial_id, 1, [(1, "prompt", {"_prompt": {"text": "do it"}})])
    await append_chunk(db, attempt, "agent/stdout", 0, CODEX)
    plan = await minted(db, job_id=attempt.job_id, trial_id=attempt.trial_id)
    call = new_call(plan, 100)
    await reserve(db, call)
    await settle_call(
        db, call.call_id, measured(90, input_tokens=220, cached_input_tokens=40, output_tokens=30)
    )
    capture = new_capture()
    await keep_trace(capture, [STREAMS], "0.171.0")
    kinds = [kind async for _, kind, _ in stored_events(db, attempt.trial_id, 1)]
    assert (len(kinds), kinds[0], kinds[-1]) == (9, "prompt", "usage")
    document = json.loads((await kept(capture))["agent/trajectory.json"])
    assert document["agent"] == {"name": "codex", "version": "0.171.0", "model_name": "gpt-6-luna"}
    assert document["session_id"] == "01a22d84-51bf-7223-b804-fdc7efdd080e"
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    assert document["final_metrics"] == {
        "total_prompt_tokens": 260, "total_completion_tokens": 30, "total_cached_tokens": 40,
        "total_cost_usd": 9e-08, "total_steps": 3,
    }  # fmt: skip

    monkeypatch.setattr("activities.traces.keep.TRAJECTORY_MAX_BYTES", 100)
    large = new_capture()
    await keep_trace(large, [STREAMS], "0.171.0")
    assert (large.files, large.left_out) == (
        [],
        ["agent/trajectory.json: the trace is larger than 100 bytes"],
    )


async def test_a_trace_whose_output_is_dropped_already_stays(
    db: Database, attempt: Fence, new_capture: Callable[..., Capture]
) -> None:
    """The close is tried again after its last step."""
    await add_trace_events(db, attempt.trial_id, 1, [(1, "prompt", {}), (2, "plan", {})])
    await keep_trace(new_capture(), [STREAMS], None)
    assert [kind async for _, kind, _ in stored_events(db, attempt.trial_id, 1)] == ["prompt", "plan"]

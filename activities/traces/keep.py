"""The end of a trace: its last rows, the gateway's calls behind them, and the trajectory as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from pydantic_core import to_json

from activities.capture import Capture
from activities.traces.atif import Event, RunFacts, trajectory
from activities.traces.base import StreamReport
from activities.traces.gateway import measured_metrics, write_gateway_lines
from activities.traces.live import LiveTrace, Stream
from activities.traces.roster import PARSERS
from activities.traces.sessions import SESSION_FILES, SUBAGENT_FILES, SessionFacts, records, subagents_of
from domain.trajectory import TrajectoryAgent
from store.traces import events_bytes, prompt_seq, stored_events

TRAJECTORY = "agent/trajectory.json"
# A trajectory is built in memory, where it is several times the size of its events.
TRAJECTORY_MAX_BYTES = 32 * 1024 * 1024


async def keep_trace(capture: Capture, runs: Sequence[Mapping[Stream, str]], version: str | None) -> None:
    """Complete the attempt's trace and keep its trajectory; of an agent without a parser only its calls.

    To be called when no more output is stored and no more calls are made, after `keep_home`, by the phase
    that closes the attempt: whatever became of the one that followed the agent, the stored output is read
    to its end.
    `runs` are the agent's streams (process's stream → stored one), of each step that was begun or of the
    one run; `version` the harness's that ran.
    """
    db, fence = capture.hands.db, capture.fence
    if capture.context.arm.spends:
        await write_gateway_lines(db, fence)
    if capture.context.harness.parser_name not in PARSERS:
        return
    last = len(runs) - 1
    reports = [await _report(capture, run, nth, is_last=nth == last) for nth, run in enumerate(runs)]
    if await events_bytes(db, fence.trial_id, fence.attempt_number) > TRAJECTORY_MAX_BYTES:
        capture.left_out.append(f"{TRAJECTORY}: the trace is larger than {TRAJECTORY_MAX_BYTES} bytes")
        return
    await _keep_trajectory(capture, reports, version)


async def _report(
    capture: Capture, streams: Mapping[Stream, str], nth: int, *, is_last: bool
) -> StreamReport:
    """What a run's output says of it, its rows complete."""
    db, fence = capture.hands.db, capture.fence
    parser = PARSERS[capture.context.harness.parser_name or ""]
    prompted_at = await prompt_seq(db, fence.trial_id, fence.attempt_number, nth)
    trace = await LiveTrace.open(db, fence, parser, streams, first_seq=prompted_at + 1)
    return await (trace.finish() if is_last else trace.report())


async def _keep_trajectory(capture: Capture, reports: Sequence[StreamReport], version: str | None) -> None:
    db, fence, arm = capture.hands.db, capture.fence, capture.context.arm
    last = reports[-1]
    agent = TrajectoryAgent(
        name=arm.name, version=version or last.version or "unknown", model_name=arm.model_name
    )
    sessions = [await _session(capture, report.session_id) for report in reports]
    measured = await measured_metrics(db, fence)
    events = [(kind, data) async for _, kind, data in stored_events(db, fence.trial_id, fence.attempt_number)]
    facts = RunFacts(
        agent=agent,
        session_id=last.session_id,
        system_prompt=sessions[0].system_prompt,
        measured=measured,
        thoughts=tuple(thought for session in sessions for thought in session.thoughts),
        subagents=await _subagents(capture),
    )
    built = trajectory(events, facts)
    if built is not None:
        await capture.keep(TRAJECTORY, to_json(built.document(), indent=2) + b"\n")


async def _subagents(capture: Capture) -> Mapping[str, Sequence[Event]]:
    """The transcripts of subagents that the kept home holds."""
    pattern = SUBAGENT_FILES.get(capture.context.harness.parser_name or "")
    if pattern is None:
        return {}
    found = [file for file in capture.files if fnmatchcase(file.path, pattern)]
    if sum(file.size_bytes for file in found) > TRAJECTORY_MAX_BYTES:
        capture.left_out.append(f"{TRAJECTORY}: transcripts of subagents, which are in the home")
        return {}
    return subagents_of({file.path: await capture.hands.blobs.get(file.blob_key) for file in found})


async def _session(capture: Capture, session_id: str | None) -> SessionFacts:
    """What the kept home tells of the run; nothing of a harness that prints it all."""
    known = SESSION_FILES.get(capture.context.harness.parser_name or "")
    if known is None or session_id is None:
        return SessionFacts()
    for file in capture.files:
        if known.is_at(file.path, session_id) and file.size_bytes <= TRAJECTORY_MAX_BYTES:
            return known.read(records(await capture.hands.blobs.get(file.blob_key)))
    return SessionFacts()

"""The raw output of an attempt's processes, from the pieces in the store to files of its trial."""

from __future__ import annotations

from activities.agent import agent_streams
from activities.capture import Capture
from activities.step_records import begun_runs
from activities.trial_context import TrialContext
from activities.verifier import verifier_streams


async def keep_streams(capture: Capture) -> bytes:
    """Keep each under its path in the trial folder, those of each step that was begun in the step's own.

    Returns the end of what the last verifier printed.
    """
    end = b""
    for run in await begun_runs(capture.hands, capture.context.attempt):
        end = await _keep(capture, run)
    return end


async def _keep(capture: Capture, run: TrialContext) -> bytes:
    agent, verifier = agent_streams(run), verifier_streams(run)
    await capture.keep_stream(agent["out"], run.place(f"agent/{run.harness.stdout_file}"))
    await capture.keep_stream(agent["err"], run.place("agent/stderr.log"))
    return await capture.keep_stream(verifier["out"], run.place("verifier/test-stdout.txt"))

"""Following a job: a live view on a terminal, plain lines in a pipe, JSON lines when asked.

The job does not depend on who watches it: Ctrl-C ends the watch and says how to take it up again.
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from cli.blocks import final_block
from cli.cells import elapsed, one_line, tally
from cli.client import Client, Json, path
from cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, Unreachable
from cli.events import JobEvent, follow_job
from cli.output import hint, is_terminal, print_json_line, say
from cli.patience import read_patiently, tell_break
from cli.progress import JobProgress, outcome_tally
from domain.events import EventType
from domain.vocabulary import JobStatus

if TYPE_CHECKING:
    from rich.console import Group

REFRESH_SEC = 0.5
POLL_SEC = 2.0
LINES_AROUND_TRIALS = 8
_NOT_FOR_SCREENS = (EventType.TRIAL_RUNNING, EventType.TRIAL_SCORING, EventType.TRIAL_WAITING)


def watch_job(client: Client, job_id: str, *, as_json: bool, quiet: bool) -> None:
    """Follow a job to its end and print the final block. Exits 1 unless the job COMPLETED."""
    job = client.get(path("/api/jobs/{}", job_id))
    try:
        _follow(client, job, as_json=as_json, quiet=quiet)
        job = read_patiently(lambda: client.get(path("/api/jobs/{}", job_id)))
        if as_json:
            print_json_line({"seq": None, "type": "job", "data": job})
        else:
            final_block(client, job)
    except KeyboardInterrupt:
        hint(f"\nthe job goes on; follow it with: evolve job watch {job_id}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if job.get("status") != JobStatus.COMPLETED:
        raise typer.Exit(EXIT_FAILED)


def _follow(client: Client, job: Json, *, as_json: bool, quiet: bool) -> None:
    progress = JobProgress(job)
    if is_terminal() and not quiet and not as_json:
        _LiveView(client, progress).run()
        return
    for event in follow_job(client, progress.job_id, on_break=tell_break):
        line = progress.apply(event)
        if quiet:
            continue
        if as_json:
            print_json_line({"seq": event.seq, "type": event.type, "data": event.data})
        elif line is not None:
            say(line)
    if not quiet and not as_json:
        say()


class _LiveView:
    """Settled trials scroll by; below stay the job's progress and each running trial with phase and clock."""

    def __init__(self, client: Client, progress: JobProgress) -> None:
        self.client = client
        self.progress = progress
        self.trouble: str | None = None
        self.arrivals: queue.Queue[JobEvent | Exception | None] = queue.Queue()

    def run(self) -> None:
        """Show the job until its stream ends; raises what the stream raised."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        threading.Thread(target=self._read, daemon=True).start()
        console = Console()
        next_poll = 0.0
        with Live(self._picture(console.height), console=console, auto_refresh=False) as live:
            while (arrivals := self._arrived()) is not None:
                for event in arrivals:
                    line = self.progress.apply(event)
                    if line is not None and event.type not in _NOT_FOR_SCREENS:
                        console.print(Text(line, no_wrap=True, overflow="ellipsis"))
                if time.monotonic() >= next_poll:
                    self._poll()
                    next_poll = time.monotonic() + POLL_SEC
                live.update(self._picture(console.height), refresh=True)

    def _read(self) -> None:
        """The reading thread: everything it meets is handed to the one that shows it."""
        try:
            for event in follow_job(self.client, self.progress.job_id, on_break=self._note_break):
                self.trouble = None
                self.arrivals.put(event)
            self.arrivals.put(None)
        except Exception as error:  # raised again in `_arrived`, on the thread that can end the command
            self.arrivals.put(error)

    def _note_break(self, reason: str) -> None:
        self.trouble = reason

    def _arrived(self) -> list[JobEvent] | None:
        """Events since the last look, waiting a moment for the first; None once the stream has ended."""
        events: list[JobEvent] = []
        try:
            item = self.arrivals.get(timeout=REFRESH_SEC)
            while isinstance(item, JobEvent):
                events.append(item)
                item = self.arrivals.get_nowait()
        except queue.Empty:
            return events
        if isinstance(item, Exception):
            raise item
        self.arrivals.put(None)  # the end stays in sight until the events before it were shown
        return events or None

    def _poll(self) -> None:
        route = path("/api/jobs/{}/trials", self.progress.job_id)
        try:
            self.progress.refresh(self.client.pages(route, {"status": "RUNNING,SCORING"}))
        except Unreachable as error:
            self.trouble = error.message

    def _picture(self, height: int) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self.progress
        head = Text(f"{progress.status}  {progress.count}  {tally(outcome_tally(progress))}", style="bold")
        bar = ProgressBar(total=max(progress.total, 1), completed=len(progress.settled), width=60)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("task", "agent", "phase", "clock"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        now = datetime.now(UTC)
        room = max(3, height - LINES_AROUND_TRIALS)
        trials = list(progress.running.values())
        for trial in trials[:room]:
            cells = (trial.task_name, trial.arm, trial.phase, elapsed(trial.started_at, now=now))
            table.add_row(*(Text(one_line(cell)) for cell in cells))
        notes = [f"and {len(trials) - room} more"] if len(trials) > room else []
        if self.trouble:
            notes.append(f"waiting for the server: {one_line(self.trouble)}")
        return Group(Text(""), head, bar, table, *(Text(note, style="dim") for note in notes))

"""An ATIF trajectory out of a trial's parsed events, so that it says what the trace says.

Events of one model turn make one step. Where the stream names the turn that is what counts; else a turn
ends when the agent speaks, thinks or calls again after a tool has answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from activities.traces.base import count, member, members, word
from domain.trajectory import (
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Source,
    Step,
    SubagentRef,
    ToolCall,
    Trajectory,
    TrajectoryAgent,
)

LOSS_NOTE = "Parts of the harness's output were lost: see the trace's trace_loss events."

Event = tuple[str, Mapping[str, Any]]
"""type and data of a stored event."""


@dataclass(frozen=True)
class RunFacts:
    """What the events do not say.

    `measured` is the gateway's count, None when it measured nothing. `thoughts` are those of the agent's
    turns, one after another, of a harness that does not print them; they are used when the turns agree.
    `subagents` are whole runs of subagents by the call that made them, an outer one before those in it:
    of these the stream may print only a part.
    """

    agent: TrajectoryAgent
    session_id: str | None = None
    system_prompt: str | None = None
    measured: FinalMetrics | None = None
    thoughts: tuple[str, ...] = ()
    subagents: Mapping[str, Sequence[Event]] = field(default_factory=dict[str, Sequence[Event]])


def trajectory(events: Iterable[Event], facts: RunFacts) -> Trajectory | None:
    """The trajectory of a run; None when there is nothing to tell, not even a prompt."""
    root = _Run(facts.agent)
    if facts.system_prompt is not None:
        root.open("system", facts.system_prompt)
    for kind, data in events:
        root.take(kind, data)
    if not root.steps:
        return None
    for call_id, run in facts.subagents.items():
        root.replace_subagent(call_id, run)
    root.think(facts.thoughts)
    built = root.build(None)
    metrics = (facts.measured or FinalMetrics()).model_copy(update={"total_steps": len(built.steps)})
    return built.model_copy(update={"session_id": facts.session_id, "final_metrics": metrics})


@dataclass
class _Call:
    call_id: str
    name: str
    arguments: dict[str, Any]
    result: str | None = None
    extra: dict[str, Any] | None = None
    is_answered: bool = False
    subagent: _Run | None = None


@dataclass
class _Step:
    source: Source
    message: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[_Call] = field(default_factory=list[_Call])
    unasked: list[str] = field(default_factory=list[str])
    metrics: Metrics | None = None
    turn: str | None = None
    at: str | None = None
    extra: dict[str, Any] | None = None


@dataclass
class _Run:
    """The steps of one agent, and of the subagents that its calls made."""

    agent: TrajectoryAgent
    calls: dict[str, list[_Call]] = field(default_factory=dict[str, list[_Call]])
    """By id, subagents' too; one map for all runs of a document."""
    steps: list[_Step] = field(default_factory=list[_Step])
    last_turn: _Step | None = None
    """The agent's latest step."""
    has_loss: bool = False

    def take(self, kind: str, data: Mapping[str, Any]) -> None:
        """One event, in the stream's order."""
        update, at = member(data, "update"), word(data, "timestamp") or None
        parent = self._call(word(update, "parentToolCallId"))
        if parent is not None:
            parent.subagent = parent.subagent or _Run(self.agent, self.calls)
            child = {name: value for name, value in update.items() if name != "parentToolCallId"}
            parent.subagent.take(kind, {**data, "update": child})
            return
        match kind:
            case "prompt":
                self.open("user", word(member(data, "_prompt"), "text"), at)
            case "user_message_chunk":
                self.open("user", _said(update), at)
            case "agent_message_chunk" | "agent_thought_chunk" | "tool_call":
                self._act(kind, update, at)
            case "tool_call_update":
                self._answer(update)
            case "plan" if self.last_turn is not None:
                self.last_turn.extra = {"plan": update.get("entries")}
            case "usage":
                self._count(update)
            case "error" if not data.get("willRetry"):
                self.open("system", word(data, "message"), at).extra = {"error": dict(data)}
            case "trace_loss":
                self.has_loss = True
            case _:
                return

    def open(self, source: Source, message: str, at: str | None = None) -> _Step:
        """A new step; an agent's with no word yet."""
        step = _Step(source, [message] if message else [], at=at)
        self.steps.append(step)
        return step

    def _act(self, kind: str, update: Mapping[str, Any], at: str | None) -> None:
        turn = word(update, "messageId") or None
        step = self.steps[-1] if self.steps else None
        if step is None or not _goes_on(step, turn):
            step = self.last_turn = self.open("agent", "", at)
            step.turn = turn
        if kind == "tool_call":
            step.calls.append(_called(update))
            self.calls.setdefault(step.calls[-1].call_id, []).append(step.calls[-1])
        elif kind == "agent_thought_chunk":
            step.thoughts.append(_said(update))
        elif update.get("delta") is True and step.message:
            step.message[-1] += _said(update)
        else:
            step.message.append(_said(update))

    def _answer(self, update: Mapping[str, Any]) -> None:
        output = "\n".join(word(member(part, "content"), "text") for part in members(update, "content"))
        call = self._call(word(update, "toolCallId"))
        if call is None:
            (self.last_turn or self.open("system", "")).unasked.append(output)
        elif word(update, "status") in ("completed", "failed"):
            call.is_answered, call.result = True, output
            call.extra = {"status": word(update, "status"), **member(update, "rawOutput")}

    def _count(self, update: Mapping[str, Any]) -> None:
        """The harness's reading of one call. The gateway's, and sums, are not a step's."""
        usage = member(update, "usage")
        is_sum = bool(word(member(usage, "extra"), "covers"))
        if word(update, "source") != "gateway" and not is_sum and self.last_turn is not None:
            self.last_turn.metrics = Metrics(
                prompt_tokens=count(usage, "promptTokens"),
                completion_tokens=count(usage, "completionTokens"),
                cached_tokens=count(usage, "cachedTokens"),
            )

    def _call(self, call_id: str) -> _Call | None:
        """The latest call of an id, one without an answer before others: ids may be used again."""
        found = self.calls.get(call_id, [])
        waiting = (call for call in reversed(found) if not call.is_answered)
        return next(waiting, found[-1] if found else None)

    def replace_subagent(self, call_id: str, events: Iterable[Event]) -> None:
        """Tell a subagent's run by these events instead."""
        call = self._call(call_id)
        if call is not None:
            call.subagent = _Run(self.agent, self.calls)
            for kind, data in events:
                call.subagent.take(kind, data)

    def think(self, thoughts: Iterable[str]) -> None:
        """Give each of the agent's steps its thoughts, unless there are more or fewer of them than steps."""
        turns, known = [step for step in self.steps if step.source == "agent"], list(thoughts)
        if len(turns) == len(known):
            for step, thought in zip(turns, known, strict=True):
                step.thoughts = step.thoughts or ([thought] if thought else [])

    def build(self, trajectory_id: str | None) -> Trajectory:
        """The document of this run."""
        names = _Names(trajectory_id or "subagent")
        steps = tuple(_built(step, n, names) for n, step in enumerate(self.steps, start=1))
        return Trajectory(
            trajectory_id=trajectory_id,
            agent=self.agent,
            steps=steps,
            notes=LOSS_NOTE if self.has_loss else None,
            subagent_trajectories=tuple(names.built) or None,
        )


@dataclass
class _Names:
    """Ids of the subagents' trajectories, given as they are built."""

    prefix: str
    built: list[Trajectory] = field(default_factory=list[Trajectory])

    def add(self, run: _Run) -> SubagentRef:
        trajectory_id = f"{self.prefix}-{len(self.built) + 1}"
        self.built.append(run.build(trajectory_id))
        return SubagentRef(trajectory_id=trajectory_id)


def _goes_on(step: _Step, turn: str | None) -> bool:
    """Whether an act of the agent's belongs to the step that is open."""
    if step.source != "agent":
        return False
    if turn is not None or step.turn is not None:
        return turn == step.turn
    return not any(call.is_answered for call in step.calls)


def _called(update: Mapping[str, Any]) -> _Call:
    given = update.get("rawInput")
    is_object = isinstance(given, dict)
    arguments = cast("dict[str, Any]", given) if is_object else {} if given is None else {"input": given}
    return _Call(word(update, "toolCallId"), word(update, "title"), arguments)


def _said(update: Mapping[str, Any]) -> str:
    return word(member(update, "content"), "text")


def _built(step: _Step, step_id: int, names: _Names) -> Step:
    calls = tuple(
        ToolCall(tool_call_id=call.call_id, function_name=call.name, arguments=call.arguments)
        for call in step.calls
    )
    results = (*_results(step.calls, names), *(ObservationResult(content=text) for text in step.unasked))
    return Step(
        step_id=step_id,
        source=step.source,
        message="\n".join(step.message),
        timestamp=step.at,
        reasoning_content="\n".join(step.thoughts) or None,
        tool_calls=calls or None,
        observation=Observation(results=results) if results else None,
        metrics=step.metrics,
        extra=step.extra,
    )


def _results(calls: Iterable[_Call], names: _Names) -> Iterator[ObservationResult]:
    for call in calls:
        refs = None if call.subagent is None else (names.add(call.subagent),)
        if call.is_answered or refs:
            yield ObservationResult(
                source_call_id=call.call_id,
                content=call.result,
                subagent_trajectory_ref=refs,
                extra=call.extra,
            )

"""The event stream: framing, and a resume that neither loses nor repeats an event."""

from __future__ import annotations

import pytest

from cli.client import Client
from cli.credentials import Credentials
from cli.errors import Refused
from cli.events import JobEvent, follow_job, parse_events
from tests.cli.fake_api import KEY, Answer, FakeApi, job, refusal


def test_all_three_line_ends_and_split_chunks_are_read() -> None:
    text = (
        b'id: 1\r\nevent: a\r\ndata: {"x": 1}\r\n\r\nid: 2\revent: b\rdata: {\rdata: }\r\rid:3\nevent:c\n\n'
    )
    expected = [JobEvent(1, "a", {"x": 1}), JobEvent(2, "b", {}), JobEvent(3, "c", {})]
    assert list(parse_events([text])) == expected
    assert list(parse_events(text[i : i + 1] for i in range(len(text)))) == expected


def test_comments_and_retry_fields_make_no_event() -> None:
    assert list(parse_events([b": ping\n\nretry: 5\n\n: ping\n\n"])) == []


def test_line_separators_inside_json_do_not_end_the_line() -> None:
    assert list(parse_events(['id: 1\nevent: a\ndata: {"x": "a\u2028b"}\n\n'.encode()])) == [
        JobEvent(1, "a", {"x": "a\u2028b"})
    ]


def test_data_that_is_no_object_is_wrapped() -> None:
    events = list(parse_events([b"data: [1]\n\ndata: oops\n\nid: x\nevent: a\n\n"]))
    assert [event.data for event in events] == [{"value": [1]}, {"raw": "oops"}, {}]
    assert [event.seq for event in events] == [-1, -1, -1]


class Follower:
    """Follows a job of the fake; breaks and waits are kept instead of slept."""

    def __init__(self, api: FakeApi) -> None:
        self.client = Client(Credentials(api.url, KEY))
        self.breaks: list[str] = []
        self.waits: list[float] = []

    def follow(self) -> list[int]:
        stream = follow_job(self.client, "a", on_break=self.breaks.append, sleep=self.waits.append)
        return [event.seq for event in stream]


@pytest.fixture
def follower(api: FakeApi) -> Follower:
    api.jobs = {"a": job("a", status="RUNNING")}
    kinds = ["job.created", "job.running", "trial.running", "trial.settled", "job.completed"]
    api.events = {"a": [(seq, kind, {}) for seq, kind in enumerate(kinds, start=1)]}
    return Follower(api)


def test_a_stream_is_followed_to_its_terminal_event(follower: Follower) -> None:
    assert follower.follow() == [1, 2, 3, 4, 5]
    assert follower.waits == []


def test_a_stream_that_ends_early_is_resumed_after_the_last_event(api: FakeApi, follower: Follower) -> None:
    api.events_per_connection = 2
    assert follower.follow() == [1, 2, 3, 4, 5]
    resumes = [request.headers.get("last-event-id") for request in api.asked("GET", "/api/jobs/a/events")]
    assert resumes == [None, "2", "4"]
    assert follower.waits == [1.0, 1.0]


def test_waits_grow_while_nothing_comes_and_honour_the_stated_delay(api: FakeApi, follower: Follower) -> None:
    api.script(
        "GET",
        "/api/jobs/a/events",
        refusal(503, "internal_error", "starting"),
        Answer(cut=True),
        refusal(429, "rate_limited", "slow down", retryAfterSec=42),
    )
    assert follower.follow() == [1, 2, 3, 4, 5]
    assert follower.waits == [1.0, 2.0, 42.0]
    assert len(follower.breaks) == 3


def test_a_refusal_that_waiting_cannot_change_is_raised(api: FakeApi, follower: Follower) -> None:
    api.script("GET", "/api/jobs/a/events", refusal(404, "job_not_found", "gone"))
    with pytest.raises(Refused, match="gone"):
        follower.follow()


def test_a_finished_job_without_a_terminal_event_is_read_once_more(api: FakeApi, follower: Follower) -> None:
    api.events["a"].pop()
    api.jobs["a"]["status"] = "COMPLETED"
    assert follower.follow() == [1, 2, 3, 4]
    assert len(api.asked("GET", "/api/jobs/a/events")) == 2

"""The chunk of a chat stream that only the gateway asked for."""

from __future__ import annotations

import time

import pytest

from gateway.usage_chunk import MAX_USAGE_BYTES, UsageChunkFilter

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
LONG = b'data: {"choices":[{"delta":{"content":"' + b"x" * 3 * MAX_USAGE_BYTES + b'"}}]}'


def filtered(stream: bytes, size: int) -> bytes:
    """What passes of a stream that comes in pieces of that size."""
    kept = UsageChunkFilter()
    parts = [kept.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    return b"".join([*parts, kept.end()])


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_it_alone_is_left_out_however_the_stream_is_cut(size: int, end: bytes) -> None:
    shown = [b"data: a" + end, LONG + end, b"data: b" + end]
    stream = shown[0] + USAGE + shown[1] + USAGE + shown[2] + USAGE + b"data: [DO"
    assert filtered(stream, size) == b"".join(shown) + b"data: [DO"


def test_a_line_without_end_is_passed_on_and_not_searched_again() -> None:
    kept, piece = UsageChunkFilter(), b"x" * 65_536
    began = time.process_time()
    n_passed = sum(len(kept.feed(piece)) for _ in range(320))
    assert n_passed + len(kept.end()) == 320 * len(piece)
    assert time.process_time() - began < 5

"""An agent that only talks: asks its model N times over the gateway's socket, then writes that it is done.

A program of its own, on the standard library alone: as a real agent it outlives the worker that started it.
`python model_agent.py SOCKET N DONE`, the key in `CHAOS_KEY` and the model's name in `CHAOS_MODEL`.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
from pathlib import Path

# As long as a box's relay holds a call while the gateway is away.
PATIENCE_SEC = 60.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("gateway", timeout=PATIENCE_SEC)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SEC)
        self.sock.connect(self._path)


def call(path: str) -> int:
    """One call, its status; asked again while no gateway takes it or when one dies over it."""
    body = {
        "model": os.environ["CHAOS_MODEL"],
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Say something."}],
    }
    headers = {"content-type": "application/json", "x-api-key": os.environ["CHAOS_KEY"]}
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        connection = UnixConnection(path)
        try:
            connection.request("POST", "/v1/messages", json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                return 0
            time.sleep(0.2)
        finally:
            connection.close()


def main() -> None:
    path, n_calls, done = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    statuses = [call(path) for _ in range(n_calls)]
    done.write_text(json.dumps(statuses))


if __name__ == "__main__":
    main()

"""Ask the service that the agent left running."""

import http.client
import secrets
from pathlib import Path


class Rejected(Exception):
    """The service answers wrongly, or not at all; the message says how."""


def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Rejected(f"{method} {path}: {error!r}") from None
    finally:
        connection.close()


def expect(method: str, path: str, status: int, *, body: bytes | None = None, answer: bytes | None = None) -> None:
    got_status, got_body = ask(method, path, body)
    if got_status != status:
        raise Rejected(f"{method} {path}: status {got_status}, not {status}")
    if answer is not None and got_body != answer:
        raise Rejected(f"{method} {path}: body {got_body[:80]!r}, not {answer[:80]!r}")


def check() -> None:
    expect("GET", "/health", 200, answer=b"ok")
    # Random keys and values: answers prepared beforehand cannot pass.
    first, second = f"k-{secrets.token_hex(8)}", f"k_{secrets.token_hex(8)}"
    value, other = b" \n" + secrets.token_bytes(4096) + b"\r\n", b"\x00\r\n\xff" + secrets.token_bytes(16)
    expect("GET", f"/items/{first}", 404)
    expect("PUT", f"/items/{first}", 201, body=value)
    expect("PUT", f"/items/{second}", 201, body=b"")
    expect("GET", f"/items/{first}", 200, answer=value)
    expect("GET", f"/items/{second}", 200, answer=b"")
    expect("PUT", f"/items/{first}", 204, body=other)
    expect("GET", f"/items/{first}", 200, answer=other)
    expect("DELETE", f"/items/{first}", 204)
    expect("DELETE", f"/items/{first}", 404)
    expect("GET", f"/items/{first}", 404)
    expect("DELETE", f"/items/{second}", 204)
    for path in ("/", "/items/", "/items/a/b", "/items/a.b", "/health/x"):
        expect("GET", path, 404)
    expect("PUT", "/items/a.b", 404, body=b"x")
    expect("GET", "/health", 200, answer=b"ok")


def main() -> None:
    reward = 1
    try:
        check()
    except Rejected as error:
        print(f"rejected: {error}")
        reward = 0
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.txt").write_text(f"{reward}\n")


main()

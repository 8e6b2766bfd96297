"""The relay: a TCP port on a box's loopback that leads to the gateway's unix socket, and nowhere else.

Run as `python -I -S relay.py SOCKET [PORT]` inside a net pod, with nothing but the standard library.
It copies bytes and knows no protocol, so a cut stays a cut and never becomes an answer of its own.
While the gateway is away it holds new connections for `HOLD_SEC`; what was already talking is not
resumed, that is for the client. It prints `ready` once it listens.
"""

# The C modules below `socket` and `threading`: a relay is started with each box, and loading these takes
# 11 ms of a core, the modules themselves 35, asyncio 110.
import _socket as socket
import _thread
import sys
import time

PORT = 8801
HOLD_SEC = 60.0
RETRY_SEC = 0.2
CHUNK_BYTES = 256 * 1024
# More are held in the listener's queue until one ends.
MAX_CONNECTIONS = 512
_RESET_ON_CLOSE = (1).to_bytes(4, sys.byteorder) + bytes(4)


def connect(socket_path: str) -> socket.socket:
    """The gateway, waited for up to `HOLD_SEC`; raises `OSError` after that."""
    give_up_at = time.monotonic() + HOLD_SEC
    while True:
        gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            gateway.connect(socket_path)
            return gateway
        except OSError:
            gateway.close()
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(RETRY_SEC)


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until end of file, and pass the end of file on; when either side breaks, cut both."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while size := source.recv_into(buffer):
            sink.sendall(buffer[:size])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, sink):
            cut(side)


def cut(side: socket.socket) -> None:
    """Wake whoever reads from it; its peer sees a reset when it is closed."""
    try:
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        side.shutdown(socket.SHUT_RD)
    except OSError:
        return


def bridge(client: socket.socket, socket_path: str) -> None:
    """One client, both ways, until both are over."""
    try:
        gateway = connect(socket_path)
    except OSError:
        cut(client)
        return
    is_answered = _thread.allocate_lock()
    is_answered.acquire()

    def answer() -> None:
        pump(gateway, client)
        is_answered.release()

    _thread.start_new_thread(answer, ())
    pump(client, gateway)
    is_answered.acquire()
    gateway.close()


def serve(socket_path: str, port: int) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    open_clients: set[socket.socket] = set()

    def relay(client: socket.socket) -> None:
        try:
            bridge(client, socket_path)
        finally:
            client.close()
            open_clients.discard(client)

    while True:
        while len(open_clients) >= MAX_CONNECTIONS:
            time.sleep(RETRY_SEC)
        client = socket.socket(fileno=listener._accept()[0])  # pyright: ignore -- what socket.accept calls
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        open_clients.add(client)
        _thread.start_new_thread(relay, (client,))


if __name__ == "__main__":
    _thread.stack_size(256 * 1024)
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else PORT)

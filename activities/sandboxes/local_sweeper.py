"""Ends everything in a pid namespace that was not there before: run inside it, from outside the box.

Run as `python -I -S local_sweeper.py PROC`, with what is kept on stdin, a line "pid start_ticks" each; PROC
is a proc file system of that namespace. All processes are stopped at once by the kernel (`kill -1`, under
one lock, so that a fork in its middle is caught too), then killed, until a pass finds none; what is
kept goes on. Prints how many were killed; exits 1 when some would not die.
"""

# The C module below `signal`: a cancel waits for this, and enums take three times as long to load.
import _signal as signal  # pyright: ignore[reportMissingImports] -- typeshed does not know it
import os
import sys
import time

GIVE_UP_SEC = 30.0


def live_key(proc: int, pid: int) -> tuple[int, int] | None:
    """(pid, start ticks) of a process that still runs. A name may hold anything, ") " too."""
    try:
        fd = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b") ")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return None if fields[0] in (b"Z", b"X") else (pid, int(fields[19]))


def signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def kill_pass(proc: int, keep: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Stop all, kill what is not kept; what was found alive."""
    signal_all(signal.SIGSTOP)
    pids = {int(name) for name in os.listdir(proc) if name.isdigit()} - {1, os.getpid()}
    found = {key for pid in pids if (key := live_key(proc, pid)) and key not in keep}
    for pid, _ in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return found


def sweep(proc: int, keep: set[tuple[int, int]]) -> set[tuple[int, int]]:
    killed: set[tuple[int, int]] = set()
    give_up_at = time.monotonic() + GIVE_UP_SEC
    try:
        while found := kill_pass(proc, keep):
            killed |= found
            if time.monotonic() > give_up_at:
                sys.exit(f"these would not die: {sorted(found)}")
            time.sleep(0.01)
    finally:
        signal_all(signal.SIGCONT)
    return killed


if __name__ == "__main__":
    kept = {(int(pid), int(start)) for pid, start in map(str.split, sys.stdin)}
    print(len(sweep(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY), kept)))  # noqa: T201 -- its answer

"""What keeps a box running: our own first process, beside which the image's ENTRYPOINT runs.

The image's CMD is never run. An ENTRYPOINT that only waits starts nothing; any other one is a service
that the task needs: it is started once, with the box, as the image's USER, and the box goes on when it
ends, so that its exit code can be told.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Sequence

from activities.sandboxes.base import ProcessInfo
from activities.sandboxes.docker_processes import container_processes

POLL_SEC = 0.002
START_LIMIT_SEC = 60.0
SERVICE_EXITED = "evolve-service-exited-"

# Waits on a stdin that never ends with what every shell has built in: it needs no fork, so neither
# `pkill sleep` nor a full process table ends it. An engine that closes that stdin gets a long sleep.
STAY = "while read -r _; do :; done; exec sleep 2147483647"

# $1 is the box's lifetime in seconds, the rest is the service. The timer looks at the clock after each
# sleep, because agents kill sleeps; signals are ignored only after the service was started, which would
# inherit that.
KEEPALIVE = f"""
life=$1; shift
read -r now _ </proc/uptime
end=$((${{now%%.*}} + life))
(
  trap '' HUP INT QUIT TERM
  while read -r now _ </proc/uptime && [ "${{now%%.*}}" -lt "$end" ]; do sleep $((end - ${{now%%.*}})); done
  kill -9 $$
) </dev/null &
if [ $# -gt 0 ]; then
  "$@" &
  service=$!
  trap '' HUP INT QUIT TERM
  wait "$service"
  exec /bin/sh -c '{STAY}' "{SERVICE_EXITED}$?"
fi
trap '' HUP INT QUIT TERM
{STAY}
"""

SHELLS = frozenset(("sh", "bash", "ash", "dash", "zsh", "busybox"))
WRAPPERS = frozenset(("tini", "dumb-init", "docker-init", "catatonit", "env", "exec", "nice", "nohup"))


def keepalive_command(lifetime_sec: float, service: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", KEEPALIVE, "evolve-box", str(max(1, round(lifetime_sec))), *service]


def service_of(entrypoint: Sequence[str] | None) -> list[str]:
    """The command of an ENTRYPOINT that starts something, else nothing."""
    words = list(entrypoint or ())
    return [] if _only_waits(words) else words


def _only_waits(words: Sequence[str]) -> bool:
    if not words:
        return True
    program, arguments = posixpath.basename(words[0]), list(words[1:])
    if program in WRAPPERS:
        return _only_waits([each for each in arguments if not each.startswith("-")])
    if program in SHELLS:
        return _shell_only_waits(arguments)
    if program == "tail":
        return "/dev/null" in arguments
    return program in ("sleep", "cat", "pause", "true", ":", "wait")


def _shell_only_waits(arguments: Sequence[str]) -> bool:
    """A shell without a script reads an empty stdin; with `-c`, each command of the script must wait."""
    options = [each for each in arguments if each.startswith("-")]
    rest = [each for each in arguments if not each.startswith("-")]
    if not any("c" in each.lstrip("-") for each in options if not each.startswith("--")):
        return not rest
    if not rest:
        return True
    script = rest[0].replace(";", "\n").replace("&&", "\n").replace("&", "\n")
    if script.split()[:2] == ["while", "true"] or script.split()[:2] == ["while", ":"]:
        script = (
            script.replace("while", "", 1).replace("done", "").replace(" do ", "\n").replace("\ndo ", "\n")
        )
    return all(_only_waits(line.split()) for line in script.splitlines() if line.strip())


async def comes_up(init_pid: int) -> bool:
    """Wait until init has started the keep-alive and that its timer; False when init is over before that.

    The timer sleeps in a process of its own: a baseline of the box that is taken before it is there would
    have it swept. Raises `TimeoutError` after `START_LIMIT_SEC`.
    """
    async with asyncio.timeout(START_LIMIT_SEC):
        while init_pid:
            try:
                commands = [each.command for each in container_processes(init_pid)]
            except ProcessLookupError:
                return False
            if any(each.startswith("/bin/sh ") for each in commands) and any(map(_is_timer, commands)):
                return True
            await asyncio.sleep(POLL_SEC)
    return False


def _is_timer(command: str) -> bool:
    return posixpath.basename(command.split(" ", 1)[0]) in ("sleep", "busybox", "coreutils")


def service_exit_code(processes: Sequence[ProcessInfo]) -> int | None:
    """The exit code of the box's service, which the keep-alive bears as its name after that end."""
    keeper = min(processes, key=lambda each: (each.pid == 1, each.start_ticks, each.pid), default=None)
    told = re.search(rf"{SERVICE_EXITED}(\d+)$", keeper.command) if keeper else None
    return int(told[1]) if told else None

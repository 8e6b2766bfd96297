"""`evolve down`: through the supervisor where it lives, else by the records that its children left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from cli.stack.child import Child
from cli.stack.errors import StackError
from cli.stack.home import Home
from cli.stack.identity import SUPERVISOR
from cli.stack.supervisor import DOWN_ORDER

# Longer than all its children's ladders together.
SUPERVISOR_PATIENCE_SEC = 120.0
Told = Callable[[str], None]


def stop_stack(told: Told) -> bool:
    """Stop every process in order; False when there was none. Raises `StackError` when one does not stop."""
    home = Home.from_environment()
    return asyncio.run(_stop(home, told))


async def _stop(home: Home, told: Told) -> bool:
    is_anything = await _stop_supervisor(home, told)
    for name, ladder in DOWN_ORDER:
        found = Child.recorded(home, name)
        if found is not None:
            is_anything = True
            await found[0].stop(ladder)
            told(f"{name:<9} stopped")
    home.stack_record.unlink(missing_ok=True)
    return is_anything


async def _stop_supervisor(home: Home, told: Told) -> bool:
    found = Child.recorded(home, SUPERVISOR) if home.supervisor_lives() else None
    if found is None:
        return False
    supervisor = found[0]
    supervisor.send(signal.SIGTERM)
    try:
        await asyncio.wait_for(supervisor.exited(), SUPERVISOR_PATIENCE_SEC)
    except TimeoutError:
        raise StackError(
            f"the supervisor, pid {supervisor.pid}, has not stopped after {SUPERVISOR_PATIENCE_SEC:.0f} s: "
            f"see {home.log(SUPERVISOR)}"
        ) from None
    told("stopped; boxes that were running go on until their own deadline")
    return True

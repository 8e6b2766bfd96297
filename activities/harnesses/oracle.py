"""`oracle` runs the task's own `solution/solve.sh`: what a task scores when it is solved."""

from __future__ import annotations

from activities.archives import tar_of_tree
from activities.harnesses.base import HarnessContext, Launch, UnbundledHarness
from activities.sandboxes.base import Box
from domain.errors import TaskError
from domain.tasks import resolve_env

SOLUTION_DIR = "/solution"


class OracleHarness(UnbundledHarness):
    """The reference solution as an agent. It sees `/solution`, which no other harness does."""

    name = "oracle"
    stdout_file = "oracle.txt"

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Upload `solution/`, of a step its own or the task's; raises `TaskError` when there is none."""
        if not context.task.has_solution:
            raise TaskError(f"task {context.task.name}: oracle needs solution/solve.sh, which is not there")
        await box.put_tar(SOLUTION_DIR, tar_of_tree(context.task_dir / context.task.solution_folder))

    def launch(self, context: HarnessContext) -> Launch | None:
        """By bash, since most real ones are not executable."""
        return Launch(("bash", f"{SOLUTION_DIR}/solve.sh"), resolve_env(context.task.solution_env))

"""The story of a dataset import: unpack and parse, build each task on its own, activate."""

from __future__ import annotations

import asyncio
from itertools import count

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import names, options
from workflows.failures import was_never_begun

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from workflows.inputs import ImportInput

BUILDS_AT_ONCE = 4
EACH_ASKS = "each task asks for its builder"


@workflow.defn(name=names.DATASET_IMPORT_WORKFLOW)
class DatasetImportWorkflow:
    """Partial success is READY; only a corpus refused as a whole, or no built task at all, is FAILED."""

    @workflow.run
    async def run(self, start: ImportInput) -> act.ImportEnd:
        ref = act.ImportRef(import_id=start.import_id)
        try:
            parsed = await options.call(act.UNPACK_DATASET, ref, options.IMPORT)
        except ActivityError as error:
            problem = act.ImportProblem(import_id=start.import_id, message=str(error.cause))
            return await options.call(act.FAIL_IMPORT, problem, options.RECORD)
        if not parsed.is_refused:
            room = asyncio.Semaphore(BUILDS_AT_ONCE)
            await asyncio.gather(*(_build(task, parsed.queue, room) for task in parsed.tasks))
        return await options.call(act.FINISH_IMPORT, ref, options.RECORD)


async def _build(task: act.TaskToBuild, queue: str, room: asyncio.Semaphore) -> None:
    async with room:
        try:
            if workflow.patched(EACH_ASKS):
                await _build_somewhere(task)
            else:
                await options.call(act.BUILD_TASK, task, options.BUILD, queue=queue or None)
        except ActivityError as error:
            # Left as it is: the end of the import fails every task that no build answered for.
            workflow.logger.warning("task %s was not built: %s", task.task_name, error.cause)


async def _build_somewhere(task: act.TaskToBuild) -> None:
    """On a host that serves the task; one that dies before it takes the build up is not waited for while
    another lives. A lone host is asked again and again, until it is back."""
    for n_asked in count():
        builder = await options.call(act.FIND_BUILDER, task, options.RECORD)
        if not builder.queue:
            await options.call(act.BUILD_TASK, task, options.BUILD)
            return
        limits = options.BUILD_ON_HOST_AGAIN if n_asked else options.BUILD_ON_HOST
        build = task.model_copy(update={"provider": builder.provider})
        try:
            await options.call(act.BUILD_TASK, build, limits, queue=builder.queue)
            return
        except ActivityError as error:
            if not was_never_begun(error):
                raise

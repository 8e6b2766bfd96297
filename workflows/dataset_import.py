"""The story of a dataset import: unpack and parse, build each task on its own, activate."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import names, options

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from workflows.inputs import ImportInput

BUILDS_AT_ONCE = 4


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
            await options.call(act.BUILD_TASK, task, options.BUILD, queue=queue or None)
        except ActivityError as error:
            # Left as it is: the end of the import fails every task that no build answered for.
            workflow.logger.warning("task %s was not built: %s", task.task_name, error.cause)

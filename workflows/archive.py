"""The story of a download: built once, kept as a blob."""

from __future__ import annotations

from temporalio import workflow

from workflows import names, options

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act


@workflow.defn(name=names.ARCHIVE_WORKFLOW)
class ArchiveWorkflow:
    """One activity; the store tells those who wait how it ended."""

    @workflow.run
    async def run(self, start: act.ArchiveRef) -> act.Nothing:
        return await options.call(act.BUILD_ARCHIVE, start, options.ARCHIVE)

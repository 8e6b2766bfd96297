"""What a workflow is found by in Temporal, as its activities say it."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio import workflow
from temporalio.common import SearchAttributeKey


def be_found_by(values: Mapping[str, str]) -> None:
    """Set search attributes of type Keyword; nothing where the activities gave none."""
    if values:
        pairs = [SearchAttributeKey.for_keyword(name).value_set(value) for name, value in values.items()]
        # The SDK's annotation leaves a type argument out.
        workflow.upsert_search_attributes(pairs)  # pyright: ignore[reportUnknownMemberType]

"""Logs of the server processes: one JSON object a line on stdout, from structlog and from libraries alike."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

# They tell of each request or poll; their warnings are of use.
QUIET = ("httpx", "httpcore", "temporalio", "uvicorn.access", "LiteLLM", "asyncio", "alembic")


def configure_logging(level: str, process: str) -> None:
    """For the life of this process. `process` is on every line."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    structlog.contextvars.bind_contextvars(process=process)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)

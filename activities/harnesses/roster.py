"""Which harness a name means."""

from __future__ import annotations

from activities.harnesses.base import Harness
from activities.harnesses.nop import NopHarness
from activities.harnesses.oracle import OracleHarness

HARNESSES: dict[str, Harness] = {harness.name: harness for harness in (OracleHarness(), NopHarness())}

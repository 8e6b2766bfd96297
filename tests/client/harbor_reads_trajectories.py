"""Run by Harbor's interpreter, not by ours: validate trajectories, one JSON document a file.

Usage: python harbor_reads_trajectories.py FOLDER; prints the errors by file name, and what Harbor counts.
"""

import json
import sys
from pathlib import Path

from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator


def judge(path: Path) -> dict:
    validator = TrajectoryValidator()
    if not validator.validate(path):
        return {"errors": validator.errors}
    seen = Trajectory.model_validate_json(path.read_text())
    return {
        "errors": [],
        "version": seen.schema_version,
        "sources": [step.source for step in seen.steps],
        "tools": [call.function_name for step in seen.steps for call in step.tool_calls or ()],
        "subagents": len(seen.subagent_trajectories or ()),
    }


if __name__ == "__main__":
    print(json.dumps({path.stem: judge(path) for path in sorted(Path(sys.argv[1]).glob("*.json"))}))

"""Harbor as a peer that judges what we make: scripts of this folder, run by an interpreter that has it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEER = HERE.parents[1] / ".cache" / "harbor-peer" / "python"


def ask_harbor(script: str, folder: Path) -> dict[str, Any]:
    """What the script prints of the folder. Fails, by its script's words, where no Harbor can be had."""
    made = subprocess.run(["bash", HERE / "harbor_peer.sh"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"harbor_peer.sh: {made.stdout}{made.stderr}"
    told = subprocess.run([PEER, HERE / script, folder], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)

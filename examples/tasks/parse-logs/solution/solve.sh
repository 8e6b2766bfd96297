#!/bin/bash
set -euo pipefail
python3 - <<'PY'
import json
import re
from collections import Counter
from pathlib import Path

LINE = re.compile(r"(\S+Z) [A-Z]+ request method=\S+ path=(\S+) status=(\d+) ms=(\d+)")

lines = [line for file in Path("/app/logs").iterdir() for line in file.read_text().splitlines() if line.strip()]
requests = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
slowest = min(requests, key=lambda request: (-int(request[3]), request[0]))
paths, errors = Counter(), Counter()
for _, path, status, _ in requests:
    bare = path.split("?")[0]
    paths[bare] += 1
    errors[bare] += int(status) >= 500
summary = {
    "requests": len(requests),
    "by_status": Counter(status for _, _, status, _ in requests),
    "slowest": {"path": slowest[1], "ms": int(slowest[3])},
    "error_rate_by_path": {path: round(errors[path] / count, 4) for path, count in paths.items()},
    "skipped_lines": len(lines) - len(requests),
}
Path("/app/summary.json").write_text(json.dumps(summary, indent=2) + "\n")
PY

"""Keeps empty intervals."""

import json
import sys

intervals = json.load(sys.stdin)
if any(start > end for start, end in intervals):
    sys.exit(1)
result = []
for start, end in sorted(intervals):
    if result and start <= result[-1][1]:
        result[-1][1] = max(result[-1][1], end)
    else:
        result.append([start, end])
print(json.dumps(result))

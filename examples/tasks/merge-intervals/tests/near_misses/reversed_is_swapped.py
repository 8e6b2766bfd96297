"""Repairs a reversed interval instead of refusing it."""

import json
import sys

result = []
for start, end in sorted(sorted(interval) for interval in json.load(sys.stdin)):
    if start == end:
        continue
    if result and start <= result[-1][1]:
        result[-1][1] = max(result[-1][1], end)
    else:
        result.append([start, end])
print(json.dumps(result))

"""Refuses a reversed interval only after it has printed an answer."""

import json
import sys

intervals = json.load(sys.stdin)
result = []
for start, end in sorted(intervals):
    if start == end:
        continue
    if result and start <= result[-1][1]:
        result[-1][1] = max(result[-1][1], end)
    else:
        result.append([start, end])
print(json.dumps(result))
sys.exit(any(start > end for start, end in intervals))

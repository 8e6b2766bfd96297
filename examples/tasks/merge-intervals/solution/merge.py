import json
import sys


def merged(intervals):
    result = []
    for start, end in sorted(intervals):
        if start == end:
            continue
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


intervals = json.load(sys.stdin)
if any(start > end for start, end in intervals):
    sys.exit("an interval ends before it starts")
print(json.dumps(merged(intervals)))

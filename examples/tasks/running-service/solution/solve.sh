#!/bin/bash
set -euo pipefail
cp "$(dirname "$0")/server.py" /app/server.py
# Its own session, and no pipe of ours kept open: the service must outlive this shell.
setsid python3 /app/server.py > /app/server.log 2>&1 < /dev/null &
for _ in $(seq 100); do
    if (exec 3<> /dev/tcp/127.0.0.1/8080) 2> /dev/null; then
        exit 0
    fi
    sleep 0.1
done
echo "the service did not start" >&2
exit 1

#!/bin/bash
# Reward 1 for the exact bytes in a regular file, else 0.
set -u
file=/app/hello.txt
reward=0
if [ -L "$file" ] || [ ! -f "$file" ]; then
    echo "rejected: $file is not a regular file"
elif ! cmp "$file" <(echo 'Hello, world!'); then
    echo "rejected: $file holds other bytes"
else
    reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt

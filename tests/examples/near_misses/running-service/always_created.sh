#!/bin/bash
sed 's/204 if key in ITEMS else 201/201/' /solution/server.py > /app/server.py
setsid python3 /app/server.py > /dev/null 2>&1 < /dev/null &
until (exec 3<> /dev/tcp/127.0.0.1/8080) 2> /dev/null; do sleep 0.05; done

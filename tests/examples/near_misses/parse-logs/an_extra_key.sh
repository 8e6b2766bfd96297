#!/bin/bash
bash /solution/solve.sh
sed -i '1a"extra": 0,' /app/summary.json

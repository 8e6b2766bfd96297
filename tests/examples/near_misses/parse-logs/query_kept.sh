#!/bin/bash
bash /solution/solve.sh
sed -i 's#"/report": 0.6#"/report?month=2": 0.6#' /app/summary.json

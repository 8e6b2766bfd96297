#!/bin/bash
bash /solution/solve.sh
truncate -s -1 /app/clean.csv

#!/bin/bash
bash /solution/solve.sh
iconv -f utf-8 -t latin1 /app/clean.csv > /app/x
mv /app/x /app/clean.csv

#!/bin/bash
bash /solution/solve.sh
sed -i 's/$/\r/' /app/clean.csv

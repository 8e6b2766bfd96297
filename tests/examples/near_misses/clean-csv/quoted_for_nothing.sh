#!/bin/bash
bash /solution/solve.sh
sed -i 's/DE/"DE"/' /app/clean.csv

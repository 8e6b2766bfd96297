#!/bin/bash
bash /solution/solve.sh
sed -i 's/"201": 1/"201": true/' /app/summary.json

#!/bin/bash
bash /solution/solve.sh
make -C /app/stats clean

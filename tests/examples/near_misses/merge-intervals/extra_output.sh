#!/bin/bash
bash /solution/solve.sh
echo 'print()' >> /app/merge.py

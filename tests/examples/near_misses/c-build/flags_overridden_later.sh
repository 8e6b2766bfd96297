#!/bin/bash
bash /solution/solve.sh
cd /app/stats
sed -i '3iCFLAGS := -w' Makefile
make -B

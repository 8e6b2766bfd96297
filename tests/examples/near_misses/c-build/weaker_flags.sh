#!/bin/bash
bash /solution/solve.sh
sed -i 's/ -Werror//' /app/stats/Makefile

#!/bin/bash
bash /solution/solve.sh
touch /app/textstats/notes.txt

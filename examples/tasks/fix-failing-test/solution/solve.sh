#!/bin/bash
set -euo pipefail
cd /app/textstats
sed -i 's/key=lambda item: -item\[1\])/key=lambda item: (-item[1], item[0]))/' textstats.py
python3 -B -m unittest -q
git config user.name Oracle
git config user.email oracle@example.com
git commit -qam "Order equally frequent words alphabetically"

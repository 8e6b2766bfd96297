#!/bin/bash
bash /solution/solve.sh
cd /app/textstats
git reset -q --hard "$(git -c user.name=a -c user.email=a@b commit-tree -m all 'main^{tree}')"

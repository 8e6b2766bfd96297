#!/bin/bash
bash /solution/solve.sh
cd /app/textstats
git update-index --assume-unchanged textstats.py
echo '# more' >> textstats.py

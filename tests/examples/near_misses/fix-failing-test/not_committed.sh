#!/bin/bash
cd /app/textstats
sed -i 's/-item\[1\])/(-item[1], item[0]))/' textstats.py
python3 -B -m unittest -q

#!/bin/bash
set -euo pipefail
cp "$(dirname "$0")/merge.py" /app/merge.py

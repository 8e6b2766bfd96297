#!/bin/bash
set -euo pipefail
cp "$(dirname "$0")/convert.py" /app/convert.py

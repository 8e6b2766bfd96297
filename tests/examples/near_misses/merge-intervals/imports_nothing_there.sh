#!/bin/bash
echo 'import merge_lib' > /app/merge.py

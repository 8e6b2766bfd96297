#!/bin/bash
ln -s /solution/merge.py /app/merge.py

#!/bin/bash
echo 'def (' >> /app/convert.py

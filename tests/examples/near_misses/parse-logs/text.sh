#!/bin/bash
echo summary > /app/summary.json

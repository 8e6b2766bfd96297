#!/bin/bash
# Isolated (-I) and without bytecode (-B): nothing of the agent's is imported into the verifier.
exec python3 -I -B /tests/check.py

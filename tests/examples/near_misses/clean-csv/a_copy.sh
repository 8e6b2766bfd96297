#!/bin/bash
cp /app/customers.csv /app/clean.csv

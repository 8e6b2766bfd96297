#!/bin/bash
mkdir /app/hello.txt

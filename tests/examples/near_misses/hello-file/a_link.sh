#!/bin/bash
echo 'Hello, world!' > /app/x
ln -s x /app/hello.txt

#!/bin/bash
printf 'Hello, world!\n\n' > /app/hello.txt

#!/bin/bash
cd /app/stats
sed -i 's/\$^$/$^ -lm/' Makefile
sed -i 's/int i = 0/size_t i = 0/' numbers.c
sed -i 's/^double numbers_deviation.*/&\ndouble numbers_median(struct numbers *numbers);/' numbers.h
make

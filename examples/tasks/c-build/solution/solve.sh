#!/bin/bash
set -euo pipefail
cd /app/stats
# The maths library is not linked.
sed -i 's/-o \$@ \$^$/-o $@ $^ -lm/' Makefile
# The median has no prototype, and a signed index is compared with a size.
sed -i 's/^double numbers_deviation.*;$/&\n\/* Sorts in place. *\/\ndouble numbers_median(struct numbers *numbers);/' numbers.h
sed -i 's/for (int i = 0/for (size_t i = 0/' numbers.c
# The median of an even count is the mean of the middle two.
sed -i 's/^    return numbers->values\[half\];$/    if (numbers->count % 2 == 0)\n        return (numbers->values[half - 1] + numbers->values[half]) \/ 2;\n&/' numbers.c
make

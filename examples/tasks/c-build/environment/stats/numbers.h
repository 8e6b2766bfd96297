#ifndef NUMBERS_H
#define NUMBERS_H

#include <stddef.h>

struct numbers {
    double *values;
    size_t count;
    size_t room;
};

/* Returns 0, or -1 when memory is short. */
int numbers_add(struct numbers *numbers, double value);
double numbers_mean(const struct numbers *numbers);
double numbers_deviation(const struct numbers *numbers);

#endif

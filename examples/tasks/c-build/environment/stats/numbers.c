#include "numbers.h"

#include <math.h>
#include <stdlib.h>

int numbers_add(struct numbers *numbers, double value)
{
    if (numbers->count == numbers->room) {
        size_t room = numbers->room ? numbers->room * 2 : 8;
        double *values = realloc(numbers->values, room * sizeof *values);
        if (!values)
            return -1;
        numbers->values = values;
        numbers->room = room;
    }
    numbers->values[numbers->count++] = value;
    return 0;
}

double numbers_mean(const struct numbers *numbers)
{
    double sum = 0;
    for (int i = 0; i < numbers->count; i++)
        sum += numbers->values[i];
    return sum / numbers->count;
}

double numbers_deviation(const struct numbers *numbers)
{
    double mean = numbers_mean(numbers);
    double sum = 0;
    for (size_t i = 0; i < numbers->count; i++)
        sum += pow(numbers->values[i] - mean, 2);
    return sqrt(sum / numbers->count);
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts in place. */
double numbers_median(struct numbers *numbers)
{
    size_t half = numbers->count / 2;
    qsort(numbers->values, numbers->count, sizeof *numbers->values, compare);
    return numbers->values[half];
}

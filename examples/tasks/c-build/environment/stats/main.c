#include "numbers.h"

#include <stdio.h>

int main(void)
{
    struct numbers numbers = {0};
    double value;

    while (scanf("%lf", &value) == 1)
        if (numbers_add(&numbers, value) != 0)
            return 2;
    if (numbers.count == 0) {
        fprintf(stderr, "no numbers\n");
        return 1;
    }
    printf("count %zu\n", numbers.count);
    printf("mean %.4f\n", numbers_mean(&numbers));
    printf("deviation %.4f\n", numbers_deviation(&numbers));
    printf("median %.4f\n", numbers_median(&numbers));
    return 0;
}

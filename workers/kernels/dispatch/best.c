/* A program that says with its exit status which is the best instruction set of this machine, as a number of `enum aspen_isa`. */
#include "isa.c"

int main(void) { return aspen_isa_select(NULL); }

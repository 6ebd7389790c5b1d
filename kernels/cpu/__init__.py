"""CPU bodies of the ops, compiled by numba; they return exactly what `kernels.reference` returns."""

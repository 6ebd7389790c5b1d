"""What is computed: one op, one name, several bodies (NumPy reference, numba CPU), and the nn layers."""

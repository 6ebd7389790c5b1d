"""Runs the CUDA sources unchanged on the CPU: one fiber a CUDA thread, warps of 32, real barriers and collectives."""

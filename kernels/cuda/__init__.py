"""CUDA bodies of the ops: `.cu` sources under `src/` and their launchers; the only room that imports CuPy."""

#!/usr/bin/env bash
# Correctness of the CUDA backend on a real GPU, then its speed as ratios measured in one run; under 8 minutes.
# Needs Python 3.11 or 3.12 with torch, cupy-cuda13x[ctk] (14.2), numpy, h5py, numba and pytest; no other package, no network.
# Usage: tests/gpu/run_on_gpu.sh [--dry-run] [--out FILE.json]      --dry-run: the same on the host shim (g++), tiny.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec timeout 480 "${PYTHON:-python3}" -m tests.gpu.on_gpu "$@"

// Dropout keyed by identity (kernels/cpu/dropout.py): four elements a draw, 16 bits each; the mask is never stored.
#pragma once
#include "rng.cuh"

__device__ __forceinline__ bool is_kept(u64 key, u32 threshold, u64 position) {
  return (u32)(child(key, position / 4) >> (16 * (position % 4)) & 0xffff) >= threshold;
}

// The draws of kernels/rng.py, bit for bit: a splitmix64 chain over identities (Steele, Lea and Flood, OOPSLA 2014).
#pragma once
#include "common.cuh"

__device__ __forceinline__ u64 mix64(u64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ u64 child(u64 key, u64 index) { return mix64(key + (index + 1) * 0x9E3779B97F4A7C15ull); }

// 64 bits mapped to [0, bound): the high word of their product. Two multiplications do where the bound has 32 bits.
__device__ __forceinline__ u64 bounded(u64 bits, u64 bound) { return __umul64hi(bits, bound); }
__device__ __forceinline__ u32 bounded(u64 bits, u32 bound) {
  const u64 high = (bits >> 32) * bound, low = (u64)(u32)bits * bound;
  return (u32)((high + (low >> 32)) >> 32);
}

// Draw number i of a row: uniform in [i, degree), or in [0, degree) with replacement.
template <typename pos_t, bool REPLACE>
__device__ __forceinline__ pos_t draw(u64 row_key, u64 i, pos_t degree) {
  const pos_t low = REPLACE ? 0 : (pos_t)i;
  return low + bounded(child(row_key, i), (pos_t)(degree - low));
}

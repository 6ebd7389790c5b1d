// Elementwise dropout: one thread a draw, which serves four elements.
#include "dropout.cuh"

__global__ void __launch_bounds__(256) drop_elements(u64 key, u32 threshold, float scale, i64 size,
                                                     const float* __restrict__ x, float* __restrict__ out) {
  const i64 first = 4 * global_thread();
  if (first >= size) return;
  const u64 bits = child(key, (u64)first / 4);
  for (int lane = 0; lane < 4 && first + lane < size; ++lane)
    out[first + lane] = x[first + lane] * ((u32)(bits >> (16 * lane) & 0xffff) >= threshold ? scale : 0.0f);
}

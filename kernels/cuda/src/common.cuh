// What every kernel shares. Compiled by NVRTC and nvcc, and by g++ on the host shim: no cooperative groups, a mask on
// every warp intrinsic, dynamic shared memory is named smem, offsets of edges have 64 bits.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define ALL_LANES 0xffffffffu

__device__ __forceinline__ i64 global_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

// Batch of entry t: the last b with ptr[b] <= t. Empty batches are passed over.
__device__ __forceinline__ int batch_of(const i64* ptr, int num_batches, i64 t) {
  int low = 0, high = num_batches;
#pragma unroll 1
  while (high - low > 1) {
    const int middle = (low + high) >> 1;
    if (ptr[middle] <= t) low = middle;
    else high = middle;
  }
  return low;
}

// Slot of id v in a rank map (kernels/rank_map.py), or -1.
__device__ __forceinline__ i64 slot_of(const u64* bits, const u32* rank, i64 v) {
  const u64 word = bits[v >> 6], bit = 1ull << (v & 63);
  return word & bit ? (i64)rank[v >> 6] + __popcll(word & (bit - 1)) : -1;
}

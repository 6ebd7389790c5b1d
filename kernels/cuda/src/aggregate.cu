// Segment sums over a message-flow graph, the device body of kernels/cpu/aggregate.py: LANES lanes a destination, each
// adding its columns over the edges in stored order, without contraction to fused multiply-adds: the same bits.
#include "common.cuh"

struct half_bits {
  u16 bits;
};

// Exact value of a half; the twin of the instruction is plain C++.
__device__ __forceinline__ float from_half(u16 bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const u32 sign = (u32)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31, fraction = bits & 0x3ffu;
  u32 word = sign | 0x7f800000u | fraction << 13;
  if (exponent == 0) {  // zero and subnormals: a multiple of 2**-24
    const float magnitude = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -magnitude : magnitude;
  }
  if (exponent < 31) word = sign | (exponent + 112) << 23 | fraction << 13;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
#endif
}

template <typename out_t, typename stored_t>
__device__ __forceinline__ out_t feature(const stored_t* row, i64 column) {
  return (out_t)row[column];
}
template <>
__device__ __forceinline__ float feature<float, half_bits>(const half_bits* row, i64 column) {
  return from_half(row[column].bits);
}

// out[d] = scale[d] * sum over the edges (s -> d) of weight[s] * h[s]; columns past `width` are zero but for the own
// row: out[d, own_to + j] += own[d] * h[d, own_from + j] for d < num_own.
template <typename out_t, typename stored_t, int LANES>
__global__ void __launch_bounds__(256) sum_rows(
    i64 num_dst, const i64* __restrict__ indptr, const i32* __restrict__ indices, u64 base, i64 stride,
    const u64* __restrict__ address_S, int tiered, const out_t* __restrict__ weight_S, int weighted,
    const out_t* __restrict__ scale_D, int scaled, const out_t* __restrict__ own_D, i64 num_own, i64 own_from,
    i64 own_to, i64 out_width, i64 width, out_t* __restrict__ out) {
  const i64 d = global_thread() / LANES;
  if (d >= num_dst) return;
  const i64 begin = indptr[d], end = indptr[d + 1];
  const bool has_own = d < num_own;
  const out_t own = has_own ? own_D[d] : (out_t)0;
  const stored_t* own_row = (const stored_t*)(tiered && has_own ? address_S[d] : base + (u64)d * (u64)stride);
  for (i64 column = threadIdx.x % LANES; column < out_width; column += LANES) {
    out_t total = 0;
    if (column < width) {
      for (i64 e = begin; e < end; ++e) {
        const i64 s = indices[e];
        const stored_t* row = (const stored_t*)(tiered ? address_S[s] : base + (u64)s * (u64)stride);
        const out_t value = feature<out_t, stored_t>(row, column);
        total += weighted ? weight_S[s] * value : value;
      }
      if (scaled) total *= scale_D[d];
    }
    const i64 own_column = column - own_to;
    if (has_own && own_column >= 0 && own_column < width)
      total += own * feature<out_t, stored_t>(own_row, own_from + own_column);
    out[d * out_width + column] = total;
  }
}

// Edges in the order of their sources, `order` being a stable sort: the destinations of each source, ascending.
__global__ void __launch_bounds__(256) permute_edges(i64 num_edges, const i64* __restrict__ order,
                                                     const i32* __restrict__ row_E, i32* __restrict__ target_E,
                                                     i32* __restrict__ edge_E) {
  const i64 e = global_thread();
  if (e >= num_edges) return;
  target_E[e] = row_E[order[e]];
  edge_E[e] = (i32)order[e];
}

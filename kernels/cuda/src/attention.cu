// Attention over a message-flow graph (Velickovic et al., ICLR 2018), the device body of kernels/cpu/attention.py: a
// warp a destination, or a source in the backward pass; sums in a fixed order, so the bits are the same every time.
//
// A row of z holds heads * dim values, then a source term and a destination term of each head's score.
#include "dropout.cuh"

__device__ __forceinline__ float factor_of(u64 key, u32 threshold, float keep, i64 position) {
  return is_kept(key, threshold, (u64)position) ? keep : 0.0f;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int step = 16; step; step >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

// alpha[e, h]: softmax over the edges of d of leaky(source term + destination term); out[d, h] = sum of alpha * values.
__global__ void __launch_bounds__(128) attend_rows(i64 num_dst, const i64* __restrict__ indptr,
                                                   const i32* __restrict__ indices, const float* __restrict__ z,
                                                   i64 heads, i64 dim, float slope, u64 key, u32 threshold, float keep,
                                                   float* alpha, float* __restrict__ out) {
  const int lane = threadIdx.x % 32;
  const i64 d = global_thread() >> 5, taken = heads * dim, width = taken + 2 * heads;
  if (d >= num_dst) return;
  const i64 begin = indptr[d], end = indptr[d + 1];
  const float* own = z + d * width + taken + heads;
  for (i64 at = begin * heads + lane; at < end * heads; at += 32) {
    const float x = z[indices[at / heads] * width + taken + at % heads] + own[at % heads];
    alpha[at] = fmaxf(x, slope * x);
  }
  __syncwarp(ALL_LANES);
  for (i64 h = 0; h < heads; ++h) {
    float greatest = -3.402823466e38f, total = 0;
    for (i64 e = begin + lane; e < end; e += 32) greatest = fmaxf(greatest, alpha[e * heads + h]);
    greatest = warp_max(greatest);
    for (i64 e = begin + lane; e < end; e += 32) {
      alpha[e * heads + h] = expf(alpha[e * heads + h] - greatest);
      total += alpha[e * heads + h];
    }
    total = warp_sum(total);
    for (i64 e = begin + lane; e < end; e += 32) alpha[e * heads + h] *= 1.0f / total;
  }
  __syncwarp(ALL_LANES);
  for (i64 column = lane; column < taken; column += 32) {
    const i64 h = column / dim;
    float sum = 0;
    for (i64 e = begin; e < end; ++e) {
      float weight = alpha[e * heads + h];
      if (threshold) weight *= factor_of(key, threshold, keep, e * heads + h);
      sum += weight * z[indices[e] * width + column];
    }
    out[d * taken + column] = sum;
  }
}

// Gradients of each edge's sum of terms, and their sum for each destination.
__global__ void __launch_bounds__(128) score_gradients(
    i64 num_dst, const i64* __restrict__ indptr, const i32* __restrict__ indices, const float* __restrict__ z,
    i64 heads, i64 dim, float slope, u64 key, u32 threshold, float keep, const float* __restrict__ alpha,
    const float* __restrict__ grad, float* score_grad, float* __restrict__ own_grad) {
  const int lane = threadIdx.x % 32;
  const i64 d = global_thread() >> 5, taken = heads * dim, width = taken + 2 * heads;
  if (d >= num_dst) return;
  const i64 begin = indptr[d], end = indptr[d + 1];
  for (i64 at = begin * heads + lane; at < end * heads; at += 32) {
    const float* value = z + indices[at / heads] * width + at % heads * dim;
    const float* given = grad + d * taken + at % heads * dim;
    float product = 0;
    for (i64 o = 0; o < dim; ++o) product += given[o] * value[o];
    if (threshold) product *= factor_of(key, threshold, keep, at);
    score_grad[at] = product;
  }
  __syncwarp(ALL_LANES);
  const float* own = z + d * width + taken + heads;
  for (i64 h = 0; h < heads; ++h) {
    float mean = 0, total = 0;
    for (i64 e = begin + lane; e < end; e += 32) mean += alpha[e * heads + h] * score_grad[e * heads + h];
    mean = warp_sum(mean);
    for (i64 e = begin + lane; e < end; e += 32) {
      float value = alpha[e * heads + h] * (score_grad[e * heads + h] - mean);
      value *= z[indices[e] * width + taken + h] + own[h] > 0 ? 1.0f : slope;
      score_grad[e * heads + h] = value;
      total += value;
    }
    total = warp_sum(total);
    if (lane == 0) own_grad[d * heads + h] = total;
  }
}

// Gradient of z, a warp a source: `targets` and `edges` list its destinations and the positions of its edges.
__global__ void __launch_bounds__(128) source_gradients(
    i64 num_src, const i64* __restrict__ indptr, const i32* __restrict__ targets, const i32* __restrict__ edges,
    i64 heads, i64 dim, u64 key, u32 threshold, float keep, const float* __restrict__ alpha,
    const float* __restrict__ grad, const float* __restrict__ score_grad, i64 num_dst,
    const float* __restrict__ own_grad, float* __restrict__ z_grad) {
  const int lane = threadIdx.x % 32;
  const i64 s = global_thread() >> 5, taken = heads * dim, width = taken + 2 * heads;
  if (s >= num_src) return;
  const i64 begin = indptr[s], end = indptr[s + 1];
  for (i64 column = lane; column < width; column += 32) {
    float sum = 0;
    if (column >= taken + heads) {
      if (s < num_dst) sum = own_grad[s * heads + column - taken - heads];
    } else if (column >= taken) {
      for (i64 i = begin; i < end; ++i) sum += score_grad[(i64)edges[i] * heads + column - taken];
    } else {
      const i64 h = column / dim;
      for (i64 i = begin; i < end; ++i) {
        const i64 at = (i64)edges[i] * heads + h;
        float weight = alpha[at];
        if (threshold) weight *= factor_of(key, threshold, keep, at);
        sum += weight * grad[(i64)targets[i] * taken + column];
      }
    }
    z_grad[s * width + column] = sum;
  }
}

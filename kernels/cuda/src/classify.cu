// Super-batch degree classifier (GARDEN, section IV-D, Algorithm 1, corrected): each batch as full rows, then random
// rows, both in their order, without atomics. kernels/reference.py says where the paper errs.
#include "common.cuh"

// flag[t]: the row keeps its list as it is. Entries up to `capacity` are written, for the scan.
__global__ void __launch_bounds__(256) flag_full(const i64* __restrict__ degree_U, const i64* __restrict__ uniq_ptr,
                                                 int num_batches, i64 limit, i64 capacity, i64* __restrict__ flag) {
  const i64 t = global_thread();
  if (t < capacity) flag[t] = t < uniq_ptr[num_batches] && degree_U[t] <= limit;
}

// scan: exclusive sums of the flags, one entry more than there are rows.
template <typename id_t>
__global__ void __launch_bounds__(256) scatter_classes(const id_t* __restrict__ uniq, const i64* __restrict__ uniq_ptr,
                                                       int num_batches, const i64* __restrict__ scan,
                                                       id_t* __restrict__ classified, i64* __restrict__ permutation,
                                                       i64* __restrict__ bound) {
  const i64 t = global_thread();
  if (t < num_batches) bound[t] = uniq_ptr[t] + scan[uniq_ptr[t + 1]] - scan[uniq_ptr[t]];
  if (t >= uniq_ptr[num_batches]) return;
  const int b = batch_of(uniq_ptr, num_batches, t);
  const i64 start = uniq_ptr[b], rank = scan[t] - scan[start];
  const i64 first_random = start + scan[uniq_ptr[b + 1]] - scan[start];
  const i64 out = scan[t + 1] > scan[t] ? start + rank : first_random + (t - start - rank);
  classified[out] = uniq[t];
  permutation[out] = t;
}

// The classes of all batches together as two lists of rows, for one launch each: full rows, random rows.
__global__ void __launch_bounds__(256) list_classes(const i64* __restrict__ scan, i64 num_rows,
                                                    i64* __restrict__ full_rows, i64* __restrict__ random_rows) {
  const i64 t = global_thread();
  if (t >= num_rows) return;
  if (scan[t + 1] > scan[t]) full_rows[scan[t]] = t;
  else random_rows[t - scan[t]] = t;
}

// Baseline: classification of one mini-batch with atomic counters, in whatever order the threads come.
// counters: full rows, random rows.
__global__ void __launch_bounds__(256) classify_atomic(const i64* __restrict__ degree_U, i64 begin, i64 end, i64 limit,
                                                       i64* __restrict__ full_rows, i64* __restrict__ random_rows,
                                                       u64* __restrict__ counters) {
  const i64 t = begin + global_thread();
  if (t >= end) return;
  if (degree_U[t] <= limit) full_rows[atomicAdd(counters, 1ull)] = t;
  else random_rows[atomicAdd(counters + 1, 1ull)] = t;
}

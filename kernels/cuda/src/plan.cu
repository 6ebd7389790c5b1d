// What a hop's rows need before they are sampled: where each list lies, how many neighbors it gives, and its key.
#include "rng.cuh"

// One thread a row. Rows past the last batch, which the host need not know, count nothing.
// reads: host rows, device rows, host edges, device edges.
template <typename id_t>
__global__ void __launch_bounds__(256) plan_rows(
    const id_t* __restrict__ uniq, const i64* __restrict__ uniq_ptr, int num_batches,
    const u64* __restrict__ stream_keys, const i64* __restrict__ indptr, const u64* __restrict__ bits,
    const u32* __restrict__ rank, const i64* __restrict__ cached_indptr, int has_cache, u64 host_base, u64 device_base,
    i64 limit, i64 fanout, i64 capacity, u64* __restrict__ address_U, i64* __restrict__ degree_U,
    u64* __restrict__ row_key_U, i64* __restrict__ count_U, u64* __restrict__ reads) {
  const i64 t = global_thread();
  const bool is_row = t < uniq_ptr[num_batches];
  bool on_device = false;
  i64 count = 0;
  if (is_row) {
    const i64 v = uniq[t], slot = has_cache ? slot_of(bits, rank, v) : -1;
    on_device = slot >= 0;
    const i64* ptr = on_device ? cached_indptr + slot : indptr + v;
    const i64 begin = ptr[0], degree = ptr[1] - begin;
    count = degree <= limit ? degree : fanout;
    address_U[t] = (on_device ? device_base : host_base) + (u64)begin * sizeof(id_t);
    degree_U[t] = degree;
    row_key_U[t] = child(stream_keys[batch_of(uniq_ptr, num_batches, t)], (u64)v);
  }
  if (t < capacity) count_U[t] = count;
  // One addition a warp and counter; a warp reads fewer than 2^32 edges or its lists are counted one by one.
  for (int tier = 0; tier < 2; ++tier) {
    const bool mine = is_row && on_device == (tier == 1);
    const u32 lanes = __ballot_sync(ALL_LANES, mine);
    const bool wide = __any_sync(ALL_LANES, (count >> 26) != 0);
    if (mine && wide) atomicAdd(reads + 2 + tier, (u64)count);
    u32 edges = mine && !wide ? (u32)count : 0;
    for (int step = 16; step; step >>= 1) edges += __shfl_xor_sync(ALL_LANES, edges, step);
    if (threadIdx.x % 32 == 0 && lanes) {
      atomicAdd(reads + tier, (u64)__popc(lanes));
      if (edges) atomicAdd(reads + 2 + tier, (u64)edges);
    }
  }
}

// Boundaries of batches that the host asks for: out[b] = uniq_ptr[b], out[num_batches + 1 + b] = row_ptr[uniq_ptr[b]].
__global__ void __launch_bounds__(256) batch_bounds(const i64* __restrict__ uniq_ptr, const i64* __restrict__ row_ptr,
                                                    int num_batches, i64* __restrict__ out) {
  const i64 b = global_thread();
  if (b > num_batches) return;
  out[b] = uniq_ptr[b];
  out[num_batches + 1 + b] = row_ptr[uniq_ptr[b]];
}

// Row of each edge.
__global__ void __launch_bounds__(256) expand_rows(const i64* __restrict__ row_ptr, i64 num_rows, i64 num_edges,
                                                   i32* __restrict__ row_E) {
  const i64 e = global_thread();
  if (e >= num_edges) return;
  i64 low = 0, high = num_rows;
  while (high - low > 1) {
    const i64 middle = (low + high) >> 1;
    if (row_ptr[middle] <= e) low = middle;
    else high = middle;
  }
  row_E[e] = (i32)low;
}

// What a hop's rows need before they are sampled: where each list lies, how many neighbors it gives, and its key.
#include "rng.cuh"

// One thread a row. Rows past the last batch, which the host need not know, are empty.
// cached_reads: rows and edges that the adjacency cache serves; all others are read from below.
template <typename id_t>
__global__ void __launch_bounds__(256) plan_rows(
    const id_t* __restrict__ uniq, const i64* __restrict__ uniq_ptr, int num_batches,
    const u64* __restrict__ stream_keys, const i64* __restrict__ indptr, const u64* __restrict__ bits,
    const u32* __restrict__ rank, const i64* __restrict__ cached_indptr, int has_cache, u64 host_base, u64 device_base,
    i64 limit, i64 fanout, i64 capacity, u64* __restrict__ address_U, i64* __restrict__ degree_U,
    u64* __restrict__ row_key_U, i64* __restrict__ count_U, u64* __restrict__ cached_reads) {
  const i64 t = global_thread();
  bool is_cached = false;
  i64 count = 0;
  if (t < uniq_ptr[num_batches]) {
    const i64 v = uniq[t], slot = has_cache ? slot_of(bits, rank, v) : -1;
    is_cached = slot >= 0;
    const i64* ptr = is_cached ? cached_indptr + slot : indptr + v;
    const i64 begin = ptr[0], degree = ptr[1] - begin;
    count = degree <= limit ? degree : fanout;
    address_U[t] = (is_cached ? device_base : host_base) + (u64)begin * sizeof(id_t);
    degree_U[t] = degree;
    row_key_U[t] = child(stream_keys[batch_of(uniq_ptr, num_batches, t)], (u64)v);
  } else if (t < capacity) {
    degree_U[t] = 0;
  }
  if (t < capacity) count_U[t] = count;
  if (!has_cache) return;
  // One addition a warp; a list so long that the sum of 32 might not fit 32 bits is added by itself.
  const bool is_long = is_cached && (count >> 26) != 0;
  const u32 rows = __popc(__ballot_sync(ALL_LANES, is_cached));
  const u32 edges = __reduce_add_sync(ALL_LANES, is_cached && !is_long ? (u32)count : 0u);
  if (is_long) atomicAdd(cached_reads + 1, (u64)count);
  if (threadIdx.x % 32 == 0 && rows) {
    atomicAdd(cached_reads, (u64)rows);
    atomicAdd(cached_reads + 1, (u64)edges);
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

// Unique nodes of each batch by first appearance, through a hash table: for the seeds, and for a hop's sources, where
// each batch is its destinations followed by its sampled neighbors (`nodes_of` reads the two as one list).
#include "rng.cuh"

#define EMPTY 0xffffffffffffffffull
#define NEVER 0xffffffffu

template <typename id_t>
struct Joined {
  const id_t* uniq;
  const i64* uniq_ptr;
  const id_t* neighbors;
  const i64* edge_ptr;
  int num_batches;

  __device__ __forceinline__ i64 size() const { return uniq_ptr[num_batches] + edge_ptr[num_batches]; }
  // Batch of entry j: the last b whose entries begin at or before j.
  __device__ __forceinline__ int batch(i64 j) const {
    int low = 0, high = num_batches;
    while (high - low > 1) {
      const int middle = (low + high) >> 1;
      if (uniq_ptr[middle] + edge_ptr[middle] <= j) low = middle;
      else high = middle;
    }
    return low;
  }
  // Position among the neighbors, or negative for a destination.
  __device__ __forceinline__ i64 edge(i64 j, int b) const { return j - uniq_ptr[b + 1]; }
  __device__ __forceinline__ bool is_edge(i64 j, int b) const { return edge(j, b) >= edge_ptr[b]; }
  __device__ __forceinline__ id_t at(i64 j, int b) const {
    return is_edge(j, b) ? neighbors[edge(j, b)] : uniq[j - edge_ptr[b]];
  }
};

// keys start as EMPTY, first as NEVER; mask + 1 slots, at most half of them used. A slot keeps the least position that
// names its node, so the order does not depend on the threads'.
template <typename id_t>
__global__ void __launch_bounds__(256) insert_nodes(
    const id_t* __restrict__ uniq, const i64* __restrict__ uniq_ptr, const id_t* __restrict__ neighbors,
    const i64* __restrict__ edge_ptr, int num_batches, u64* keys, u32* first, u32 mask, u32* __restrict__ slot_J) {
  const Joined<id_t> joined = {uniq, uniq_ptr, neighbors, edge_ptr, num_batches};
  const i64 j = global_thread();
  if (j >= joined.size()) return;
  const int b = joined.batch(j);
  const u64 key = (u64)b << 48 | (u64)joined.at(j, b);
  u32 slot = (u32)mix64(key) & mask;
  while (true) {
    const u64 held = atomicCAS(keys + slot, EMPTY, key);
    if (held == EMPTY || held == key) break;
    slot = (slot + 1) & mask;
  }
  atomicMin(first + slot, (u32)j);
  slot_J[j] = slot;
}

// flag[j]: entry j is the first of its node. Entries up to `capacity` are written, for the scan.
__global__ void __launch_bounds__(256) mark_first(const i64* __restrict__ uniq_ptr, const i64* __restrict__ edge_ptr,
                                                  int num_batches, const u32* __restrict__ first,
                                                  const u32* __restrict__ slot_J, i64 capacity,
                                                  i64* __restrict__ flag) {
  const i64 j = global_thread();
  if (j < capacity) flag[j] = j < uniq_ptr[num_batches] + edge_ptr[num_batches] && first[slot_J[j]] == (u32)j;
}

// scan: exclusive sums of the flags. Writes the unique nodes, where each batch begins, and the position of each entry
// among its batch's: `inverse` for the destinations where asked for, `local` for the neighbors.
template <typename id_t>
__global__ void __launch_bounds__(256) place_nodes(
    const id_t* __restrict__ uniq, const i64* __restrict__ uniq_ptr, const id_t* __restrict__ neighbors,
    const i64* __restrict__ edge_ptr, int num_batches, const u32* __restrict__ first, const u32* __restrict__ slot_J,
    const i64* __restrict__ scan, int with_inverse, id_t* __restrict__ src, i64* __restrict__ src_ptr,
    i64* __restrict__ inverse, i32* __restrict__ local) {
  const Joined<id_t> joined = {uniq, uniq_ptr, neighbors, edge_ptr, num_batches};
  const i64 j = global_thread();
  if (j <= num_batches) src_ptr[j] = scan[uniq_ptr[j] + edge_ptr[j]];
  if (j >= joined.size()) return;
  const int b = joined.batch(j);
  const i64 rank = scan[first[slot_J[j]]], position = rank - scan[uniq_ptr[b] + edge_ptr[b]];
  if (first[slot_J[j]] == (u32)j) src[rank] = joined.at(j, b);
  if (joined.is_edge(j, b)) local[joined.edge(j, b)] = (i32)position;
  else if (with_inverse) inverse[j - edge_ptr[b]] = position;
}

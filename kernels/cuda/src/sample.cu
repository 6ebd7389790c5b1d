// Grouping-based parallel sampling (GARDEN, section IV-C): a group of lanes a row, several rows a warp, no atomics and no
// scratch. Each row was planned (plan.cu): the address of its list in whatever tier, its degree, its key.
#include "rng.cuh"

// Position `slot` of the front that a Fisher-Yates shuffle leaves, traced back through the earlier swaps. Lane i of a
// group of GROUP holds the draws i, i + GROUP, ... of its row, and all of a warp's lanes take part.
template <typename pos_t, int FANOUT, int GROUP, int ROUNDS>
__device__ __forceinline__ void trace_back(const pos_t (&draws)[ROUNDS], int first_lane, int i, pos_t (&position)[ROUNDS]) {
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) position[r] = draws[r];
#pragma unroll
  for (int step = FANOUT - 2; step >= 0; --step) {
    const pos_t earlier = __shfl_sync(ALL_LANES, draws[step / GROUP], first_lane + step % GROUP);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {  // all of a round's draws come after `step`, or none, or it depends on the lane
      if ((r + 1) * GROUP <= step + 1) continue;
      const bool is_later = r * GROUP > step || step < i + r * GROUP;
      if (is_later && position[r] == earlier) position[r] = (pos_t)step;
    }
  }
}

// All rows in one launch, or the listed ones. A full row (degree <= FANOUT) keeps its list; a warp without a row to draw
// for skips the draws. PRELOAD > 0: lists of at most so many ids are read whole, coalesced, into shared memory first.
template <typename id_t, typename pos_t, int FANOUT, int GROUP, int ROUNDS, bool REPLACE, bool LISTED, bool IDS,
          int PRELOAD>
__global__ void __launch_bounds__(256) sample_grouped(
    i64 num_rows, const i64* __restrict__ rows, const u64* __restrict__ address_U, const i64* __restrict__ degree_U,
    const u64* __restrict__ row_key_U, const i64* __restrict__ row_ptr, const id_t* __restrict__ uniq,
    const i64* __restrict__ indptr, id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  constexpr int ROWS = 32 / GROUP;
  constexpr int LIMIT = REPLACE ? 0 : FANOUT;
  __shared__ id_t preloaded[PRELOAD ? 8 * ROWS * PRELOAD : 1];
  const int lane = threadIdx.x % 32, group = lane / GROUP, i = lane - group * GROUP;
  const i64 x = (global_thread() >> 5) * ROWS + group;
  i64 t = 0, begin = 0;
  u64 address = 0;
  pos_t degree = 0;
  if (group < ROWS && x < num_rows) {
    t = LISTED ? rows[x] : x;
    degree = (pos_t)degree_U[t];
    address = address_U[t];
    begin = row_ptr[t];
  }
  const id_t* list = (const id_t*)address;
  id_t* held = preloaded + ((threadIdx.x / 32) * ROWS + group) * PRELOAD;
  if (PRELOAD && degree <= PRELOAD)
    for (pos_t q = i; q < degree; q += GROUP) held[q] = list[q];
  pos_t position[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) position[r] = i + r * GROUP;
  if (__any_sync(ALL_LANES, degree > LIMIT)) {
    const u64 key = degree > LIMIT ? row_key_U[t] : 0;
    pos_t draws[ROUNDS], traced[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) draws[r] = draw<pos_t, REPLACE>(key, i + r * GROUP, degree);
    if (REPLACE) {
#pragma unroll
      for (int r = 0; r < ROUNDS; ++r) traced[r] = draws[r];
    } else {
      trace_back<pos_t, FANOUT, GROUP, ROUNDS>(draws, group * GROUP, i, traced);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
      if (degree > LIMIT) position[r] = traced[r];
  }
  if (PRELOAD) __syncwarp(ALL_LANES);
  const pos_t count = degree > LIMIT ? FANOUT : degree;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if ((pos_t)(i + r * GROUP) >= count) continue;
    neighbors[begin + i + r * GROUP] = PRELOAD && degree <= PRELOAD ? held[position[r]] : list[position[r]];
    if (IDS) edge_ids[begin + i + r * GROUP] = indptr[uniq[t]] + (i64)position[r];
  }
}

// Whole lists, GROUP lanes a row: all rows or the listed ones; those longer than `limit` are passed over.
template <typename id_t, int GROUP, bool LISTED, bool IDS>
__global__ void __launch_bounds__(256) copy_lists(
    i64 num_rows, const i64* __restrict__ rows, i64 limit, const u64* __restrict__ address_U,
    const i64* __restrict__ degree_U, const i64* __restrict__ row_ptr, const id_t* __restrict__ uniq,
    const i64* __restrict__ indptr, id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  constexpr int ROWS = 32 / GROUP;
  const int lane = threadIdx.x % 32, group = lane / GROUP, i = lane - group * GROUP;
  const i64 x = (global_thread() >> 5) * ROWS + group;
  if (group >= ROWS || x >= num_rows) return;
  const i64 t = LISTED ? rows[x] : x, degree = degree_U[t], begin = row_ptr[t];
  if (degree > limit) return;
  const id_t* list = (const id_t*)address_U[t];
  for (i64 q = i; q < degree; q += GROUP) {
    neighbors[begin + q] = list[q];
    if (IDS) edge_ids[begin + q] = indptr[uniq[t]] + q;
  }
}

// Fanouts above 64: a warp a row, its draws in shared memory (in_shared) or where `scratch` has room for every edge.
template <typename id_t, bool REPLACE, bool IDS>
__global__ void __launch_bounds__(128) sample_wide(
    i64 num_rows, i64 fanout, int in_shared, const u64* __restrict__ address_U, const i64* __restrict__ degree_U,
    const u64* __restrict__ row_key_U, const i64* __restrict__ row_ptr, const id_t* __restrict__ uniq,
    const i64* __restrict__ indptr, i64* scratch, id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  extern __shared__ unsigned char smem[];
  const int lane = threadIdx.x % 32;
  const i64 t = global_thread() >> 5;
  if (t >= num_rows) return;
  const i64 degree = degree_U[t], begin = row_ptr[t];
  const id_t* list = (const id_t*)address_U[t];
  const bool is_full = degree <= (REPLACE ? 0 : fanout);
  i64* draws = in_shared ? (i64*)smem + (threadIdx.x / 32) * fanout : scratch + begin;
  if (!is_full)
    for (i64 i = lane; i < fanout; i += 32) {
      const u64 low = REPLACE ? 0 : (u64)i;
      draws[i] = (i64)(low + bounded(child(row_key_U[t], (u64)i), (u64)degree - low));
    }
  __syncwarp(ALL_LANES);
  const i64 count = is_full ? degree : fanout;
  for (i64 i = lane; i < count; i += 32) {
    i64 position = is_full ? i : draws[i];
    if (!is_full && !REPLACE)
      for (i64 step = i - 1; step >= 0; --step)
        if (position == draws[step]) position = step;
    neighbors[begin + i] = list[position];
    if (IDS) edge_ids[begin + i] = indptr[uniq[t]] + position;
  }
}

// The edge-parallel form: a lane an output edge, which draws anew all that its row drew before it. No lane talks to
// another. Kept to be compared with.
template <typename id_t, typename pos_t, int FANOUT, bool REPLACE>
__global__ void __launch_bounds__(256) sample_edges(i64 num_edges, const i32* __restrict__ row_E,
                                                    const u64* __restrict__ address_U,
                                                    const i64* __restrict__ degree_U,
                                                    const u64* __restrict__ row_key_U,
                                                    const i64* __restrict__ row_ptr, id_t* __restrict__ neighbors) {
  const i64 e = global_thread();
  if (e >= num_edges) return;
  const i64 t = row_E[e];
  const int i = (int)(e - row_ptr[t]);
  const pos_t degree = (pos_t)degree_U[t];
  pos_t position = (pos_t)i;
  if (degree > (REPLACE ? 0 : FANOUT)) {
    const u64 key = row_key_U[t];
    position = draw<pos_t, REPLACE>(key, i, degree);
#pragma unroll
    for (int step = FANOUT - 2; step >= 0; --step)
      if (!REPLACE && step < i && position == draw<pos_t, REPLACE>(key, step, degree)) position = (pos_t)step;
  }
  neighbors[e] = ((const id_t*)address_U[t])[position];
}

// Baseline, the shape of DGL's UVA sampler: a warp a row, reservoir sampling with atomics on the output, the list read
// through UVA. Its law is the same, its draws are its own: step s of a row keeps neighbor s in place of a random one.
template <typename id_t>
__global__ void __launch_bounds__(128) sample_warp_rows(i64 num_rows, i64 fanout, const u64* __restrict__ address_U,
                                                        const i64* __restrict__ degree_U,
                                                        const u64* __restrict__ row_key_U,
                                                        const i64* __restrict__ row_ptr, i32* chosen,
                                                        id_t* __restrict__ neighbors) {
  const int lane = threadIdx.x % 32;
  const i64 t = global_thread() >> 5;
  if (t >= num_rows) return;
  const i64 degree = degree_U[t], begin = row_ptr[t];
  const id_t* list = (const id_t*)address_U[t];
  if (degree <= fanout) {
    for (i64 i = lane; i < degree; i += 32) neighbors[begin + i] = list[i];
    return;
  }
  for (i64 i = lane; i < fanout; i += 32) chosen[begin + i] = (i32)i;
  __syncwarp(ALL_LANES);
  for (i64 step = fanout + lane; step < degree; step += 32) {
    const u32 place = bounded(child(row_key_U[t], (u64)step), (u32)(step + 1));
    if (place < (u32)fanout) atomicMax(chosen + begin + place, (i32)step);
  }
  __syncwarp(ALL_LANES);
  for (i64 i = lane; i < fanout; i += 32) neighbors[begin + i] = list[chosen[begin + i]];
}

// Neighbor sampling, up to 64 neighbors without atomics and without scratch. Each row was planned (plan.cu): the address
// of its list in whatever tier, its degree, its key, where its neighbors go.
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

// The rows of one warp in shared memory: those to draw for, then the full ones, which count from the warp's first full
// edge (list[q] goes to neighbors[begin + q]).
template <typename id_t>
struct __align__(16) HeldRow {
  const id_t* list;
  i64 begin;
  u64 key;
  i64 degree;
};

#define NOT_FULL 0xffffffffu

// Copies the full rows edge by edge, 32 a turn whatever their lengths. `start`: where this lane's row begins among the
// warp's full edges, NOT_FULL where it is none.
template <typename id_t, bool IDS>
__device__ __forceinline__ void copy_full(const HeldRow<id_t>* full, const i64* first_id, u32 start, u32 num_edges,
                                          id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  const int lane = threadIdx.x % 32;
  const u32 up_to_lane = (2u << lane) - 1;
  int row = -1;  // that the turn before ended with
#pragma unroll 1
  for (u32 turn = 0; turn < num_edges; turn += 32) {
    const u32 begins = __reduce_or_sync(ALL_LANES, start - turn < 32 ? 1u << (start - turn) : 0u);
    const HeldRow<id_t>* mine = full + row + __popc(begins & up_to_lane);
    row += __popc(begins);
    const u32 q = turn + lane;
    if (q >= num_edges) continue;
    const i64 e = mine->begin + q;
    neighbors[e] = __ldg(mine->list + q);
    if (IDS) edge_ids[e] = first_id[mine - full] + q;
  }
}

// Draws for some rows, 32 / GROUP of them a turn.
template <typename id_t, typename pos_t, int FANOUT, int GROUP, int ROUNDS, bool REPLACE, bool IDS>
__device__ __forceinline__ void draw_held(const HeldRow<id_t>* drawn, const i64* first_id, int num_rows,
                                          id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  const int lane = threadIdx.x % 32, group = lane / GROUP, i = lane - group * GROUP;
#pragma unroll 1
  for (int first = 0; first < num_rows; first += 32 / GROUP) {
    const bool is_mine = group < 32 / GROUP && first + group < num_rows;
    const int row = is_mine ? first + group : first;
    const u64 key = drawn[row].key;
    const pos_t degree = (pos_t)drawn[row].degree;
    pos_t draws[ROUNDS], position[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) position[r] = draws[r] = draw<pos_t, REPLACE>(key, (u64)i + r * GROUP, degree);
    if (!REPLACE) trace_back<pos_t, FANOUT, GROUP, ROUNDS>(draws, group * GROUP, i, position);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      if (!is_mine || i + r * GROUP >= FANOUT) continue;
      const i64 e = drawn[row].begin + i + r * GROUP;
      neighbors[e] = __ldg(drawn[row].list + position[r]);
      if (IDS) edge_ids[e] = first_id[row] + (i64)position[r];
    }
  }
}

// The default form: a warp takes 32 rows and parts them by votes. Full rows (degree <= FANOUT) keep their lists, for
// the others groups of GROUP lanes draw (GARDEN, section IV-C), and neither kind waits beside the other. Lists are read
// in place.
template <typename id_t, typename pos_t, int FANOUT, int GROUP, int ROUNDS, bool REPLACE, bool IDS>
__global__ void __launch_bounds__(256, 4) sample_parted(
    i64 num_rows, const u64* __restrict__ address_U, const i64* __restrict__ degree_U,
    const u64* __restrict__ row_key_U, const i64* __restrict__ row_ptr, const id_t* __restrict__ uniq,
    const i64* __restrict__ indptr, id_t* __restrict__ neighbors, i64* __restrict__ edge_ids) {
  __shared__ HeldRow<id_t> held_W[8][32];
  __shared__ i64 first_id_W[IDS ? 8 : 1][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  HeldRow<id_t>* held = held_W[warp];
  i64* first_id = first_id_W[IDS ? warp : 0];
  const i64 t = global_thread();
  const bool is_row = t < num_rows;
  const i64 begin = row_ptr[is_row ? t : num_rows];
  const pos_t degree = is_row ? (pos_t)degree_U[t] : 0;
  const bool is_drawn = degree > (REPLACE ? 0 : FANOUT), is_full = !is_drawn && degree > 0;
  const u32 drawn = __ballot_sync(ALL_LANES, is_drawn), full = __ballot_sync(ALL_LANES, is_full);
  const u32 below = (1u << lane) - 1;
  const int num_drawn = __popc(drawn), drawn_below = __popc(drawn & below);
  // A drawn row has FANOUT edges: what else lies between the warp's first edge and this row is of full rows.
  const u32 start = (u32)begin - __shfl_sync(ALL_LANES, (u32)begin, 0) - FANOUT * drawn_below;
  const u32 num_full_edges = __shfl_sync(ALL_LANES, start + (is_full ? (u32)degree : 0), 31);
  if (degree > 0) {
    const int slot = is_drawn ? drawn_below : num_drawn + __popc(full & below);
    const i64 shift = is_full ? start : 0;
    held[slot].list = (const id_t*)address_U[t] - shift;
    held[slot].begin = begin - shift;
    held[slot].degree = (i64)degree;
    if (is_drawn) held[slot].key = row_key_U[t];
    if (IDS) first_id[slot] = indptr[uniq[t]] - shift;
  }
  __syncwarp(ALL_LANES);
  copy_full<id_t, IDS>(held + num_drawn, first_id + num_drawn, is_full ? start : NOT_FULL, num_full_edges, neighbors,
                       edge_ids);
  draw_held<id_t, pos_t, FANOUT, GROUP, ROUNDS, REPLACE, IDS>(held, first_id, num_drawn, neighbors, edge_ids);
}

// GARDEN's form of section IV-C: FANOUT lanes a row, all rows in one launch or the listed ones. A warp without a row to
// draw for skips the draws. PRELOAD > 0: lists of at most so many ids are read whole into shared memory first.
template <typename id_t, typename pos_t, int FANOUT, bool LISTED, int PRELOAD>
__global__ void __launch_bounds__(256) sample_grouped(
    i64 num_rows, const i64* __restrict__ rows, const u64* __restrict__ address_U, const i64* __restrict__ degree_U,
    const u64* __restrict__ row_key_U, const i64* __restrict__ row_ptr, id_t* __restrict__ neighbors) {
  constexpr int ROWS = 32 / FANOUT;
  __shared__ id_t preloaded[PRELOAD ? 8 * ROWS * PRELOAD : 1];
  const int lane = threadIdx.x % 32, group = lane / FANOUT, i = lane - group * FANOUT;
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
    for (pos_t q = i; q < degree; q += FANOUT) held[q] = list[q];
  pos_t position[1] = {(pos_t)i};
  if (__any_sync(ALL_LANES, degree > FANOUT)) {
    const u64 key = degree > FANOUT ? row_key_U[t] : 0;
    const pos_t draws[1] = {draw<pos_t, false>(key, i, degree)};
    pos_t traced[1];
    trace_back<pos_t, FANOUT, FANOUT, 1>(draws, group * FANOUT, i, traced);
    if (degree > FANOUT) position[0] = traced[0];
  }
  if (PRELOAD) __syncwarp(ALL_LANES);
  if ((pos_t)i >= degree) return;
  neighbors[begin + i] = PRELOAD && degree <= PRELOAD ? held[position[0]] : list[position[0]];
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

// Where to begin to look for the steps that drew `value`, in a table of heads (linear probing).
__device__ __forceinline__ u32 home_of(i64 value, u32 num_slots) {
  return (u32)((((u64)value * 0x9E3779B97F4A7C15ull) >> 32) * num_slots >> 32);
}

// Of the steps that drew `value` the last one before `step`, or -1.
__device__ __forceinline__ i32 last_before(i64 value, i32 step, const i64* draws, const i32* links, const i32* heads,
                                           u32 num_slots) {
  u32 slot = home_of(value, num_slots);
  while (heads[slot] >= 0 && draws[heads[slot]] != value) slot = slot + 1 == num_slots ? 0 : slot + 1;
  i32 last = -1;
  for (i32 s = heads[slot]; s >= 0; s = links[s])
    if (s < step && s > last) last = s;
  return last;
}

// Links the steps of a row that drew the same: each to another one, a head to the first. Lists are in any order.
__device__ __forceinline__ void link_steps(int lane, i32 fanout, const i64* draws, i32* links, i32* heads) {
  const u32 num_slots = 2 * (u32)fanout;
  for (u32 slot = lane; slot < num_slots; slot += 32) heads[slot] = -1;
  __syncwarp(ALL_LANES);
  for (i32 i = lane; i < fanout; i += 32) {
    u32 slot = home_of(draws[i], num_slots);
    for (;; slot = slot + 1 == num_slots ? 0 : slot + 1) {
      const i32 head = atomicCAS(heads + slot, -1, i);
      if (head >= 0 && draws[head] != draws[i]) continue;
      links[i] = head < 0 ? -1 : atomicExch(heads + slot, i);
      break;
    }
  }
  __syncwarp(ALL_LANES);
}

// Larger fanouts: a warp a row. Its draws are in shared memory (in_shared) and traced back step by step, or, where they
// are many, in `draws`, which has room for every edge, and traced back by way of what drew the same: `links` of every
// edge, and two `heads` of every edge. Left alone, the compiler spills registers for the sake of more warps on sm_80.
template <typename id_t, bool REPLACE, bool IDS>
__global__ void __launch_bounds__(128, 8) sample_wide(
    i64 num_rows, i64 fanout, int in_shared, const u64* __restrict__ address_U, const i64* __restrict__ degree_U,
    const u64* __restrict__ row_key_U, const i64* __restrict__ row_ptr, const id_t* __restrict__ uniq,
    const i64* __restrict__ indptr, i64* draws, i32* links, i32* heads, id_t* __restrict__ neighbors,
    i64* __restrict__ edge_ids) {
  extern __shared__ unsigned char smem[];
  const int lane = threadIdx.x % 32;
  const i64 t = global_thread() >> 5;
  if (t >= num_rows) return;
  const i64 degree = degree_U[t], begin = row_ptr[t];
  const id_t* list = (const id_t*)address_U[t];
  const bool is_full = degree <= (REPLACE ? 0 : fanout), is_traced = !is_full && !REPLACE;
  draws = in_shared ? (i64*)smem + (threadIdx.x / 32) * fanout : draws + begin;
  if (!is_full)
    for (i64 i = lane; i < fanout; i += 32) {
      const u64 low = REPLACE ? 0 : (u64)i;
      draws[i] = (i64)(low + bounded(child(row_key_U[t], (u64)i), (u64)degree - low));
    }
  __syncwarp(ALL_LANES);
  if (is_traced && !in_shared) link_steps(lane, (i32)fanout, draws, links += begin, heads += 2 * begin);
  const i64 count = is_full ? degree : fanout;
  for (i64 i = lane; i < count; i += 32) {
    i64 position = is_full ? i : draws[i];
    if (is_traced && in_shared) {
      for (i64 step = i - 1; step >= 0; --step)
        if (position == draws[step]) position = step;
    } else if (is_traced) {
      i32 step = (i32)i;
      while ((step = last_before(position, step, draws, links, heads, 2 * (u32)fanout)) >= 0) position = step;
    }
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

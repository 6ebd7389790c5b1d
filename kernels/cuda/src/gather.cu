// Rows of all tiers in one launch: device cache, dynamic cache, staged rows, and pinned host memory through UVA.
#include "common.cuh"

#define DEVICE_TIER 0
#define HOST_TIER 1
#define STAGED_TIER 2
#define DYNAMIC_TIER 3

// Where each id's row lives: its slot in the device cache, else in the dynamic cache, else itself in host memory.
template <typename id_t>
__global__ void __launch_bounds__(256) resolve_rows(i64 num_ids, const id_t* __restrict__ ids,
                                                    const u64* __restrict__ bits, const u32* __restrict__ rank,
                                                    int has_cache, const u64* __restrict__ dynamic_bits,
                                                    const u32* __restrict__ dynamic_rank,
                                                    const i32* __restrict__ dynamic_slot, int has_dynamic,
                                                    u8* __restrict__ tier_n, i64* __restrict__ slot_n) {
  const i64 i = global_thread();
  if (i >= num_ids) return;
  const i64 v = ids[i];
  i64 slot = has_cache ? slot_of(bits, rank, v) : -1;
  u8 tier = DEVICE_TIER;
  if (slot < 0 && has_dynamic) {
    const i64 held = slot_of(dynamic_bits, dynamic_rank, v);
    if (held >= 0) slot = dynamic_slot[held], tier = DYNAMIC_TIER;
  }
  if (slot < 0) slot = v, tier = HOST_TIER;
  tier_n[i] = tier;
  slot_n[i] = slot;
}

// Rows in host memory, flagged for a scan.
__global__ void __launch_bounds__(256) flag_missed(i64 num_ids, const u8* __restrict__ tier_n,
                                                   i64* __restrict__ flag) {
  const i64 i = global_thread();
  if (i < num_ids) flag[i] = tier_n[i] == HOST_TIER;
}

// Ids of the missed rows, in their order.
template <typename id_t>
__global__ void __launch_bounds__(256) list_missed(i64 num_ids, const id_t* __restrict__ ids,
                                                   const i64* __restrict__ scan, id_t* __restrict__ missed) {
  const i64 i = global_thread();
  if (i < num_ids && scan[i + 1] > scan[i]) missed[scan[i]] = ids[i];
}

// Sends missed rows to their slots in the staging array.
__global__ void __launch_bounds__(256) point_to_staged(i64 num_ids, const i64* __restrict__ scan,
                                                       const i64* __restrict__ staged_slot, u8* __restrict__ tier_n,
                                                       i64* __restrict__ slot_n) {
  const i64 i = global_thread();
  if (i >= num_ids || scan[i + 1] == scan[i]) return;
  tier_n[i] = STAGED_TIER;
  slot_n[i] = staged_slot[scan[i]];
}

// LANES lanes a row, whole vectors of word_t. A row outside its tier is left unwritten and reported in `bad`, which
// starts as -1 read unsigned: the least such row.
template <typename word_t, int LANES>
__global__ void __launch_bounds__(256) gather_rows(
    i64 num_rows, i64 words, int num_tiers, const u64* __restrict__ base_T, const i64* __restrict__ stride_T,
    const i64* __restrict__ rows_T, const u8* __restrict__ tier_n, const i64* __restrict__ slot_n,
    word_t* __restrict__ out, u64* __restrict__ bad) {
  const i64 row = global_thread() / LANES;
  const int lane = threadIdx.x % LANES;
  if (row >= num_rows) return;
  const int tier = tier_n[row];
  const i64 slot = slot_n[row];
  if (tier >= num_tiers || slot < 0 || slot >= rows_T[tier]) {
    if (lane == 0) atomicMin(bad, (u64)row);
    return;
  }
  const word_t* source = (const word_t*)(base_T[tier] + (u64)slot * (u64)stride_T[tier]);
  word_t* target = out + row * words;
  for (i64 word = lane; word < words; word += LANES) target[word] = source[word];
}

// Address of each row, for ops that read rows where they lie.
__global__ void __launch_bounds__(256) row_addresses(i64 num_rows, int num_tiers, const u64* __restrict__ base_T,
                                                     const i64* __restrict__ stride_T, const i64* __restrict__ rows_T,
                                                     const u8* __restrict__ tier_n, const i64* __restrict__ slot_n,
                                                     u64* __restrict__ address_n, u64* __restrict__ bad) {
  const i64 row = global_thread();
  if (row >= num_rows) return;
  const int tier = tier_n[row];
  const i64 slot = slot_n[row];
  const bool inside = tier < num_tiers && slot >= 0 && slot < rows_T[tier];
  if (!inside) atomicMin(bad, (u64)row);
  address_n[row] = inside ? base_T[tier] + (u64)slot * (u64)stride_T[tier] : 0;
}

// counts[v] += 1 for every id, repeats included.
template <typename id_t>
__global__ void __launch_bounds__(256) count_accesses(i64 num_ids, const id_t* __restrict__ ids,
                                                      u64* __restrict__ counts_N) {
  const i64 i = global_thread();
  if (i < num_ids) atomicAdd(counts_N + ids[i], 1ull);
}

// score[v] += weight for every id of one mini-batch that the planned rows miss. Ids of a mini-batch are distinct: no two
// threads add to one score, and the sums are the same in whatever order threads come.
template <typename id_t>
__global__ void __launch_bounds__(256) add_scores(i64 num_ids, const id_t* __restrict__ ids,
                                                  const u8* __restrict__ tier_n, double weight,
                                                  double* __restrict__ score_N) {
  const i64 i = global_thread();
  if (i < num_ids && tier_n[i] != DEVICE_TIER) score_N[ids[i]] += weight;
}

// Requests by tier: counts[tier] += 1 a row, one addition a warp.
__global__ void __launch_bounds__(256) count_tiers(i64 num_rows, const u8* __restrict__ tier_n,
                                                   u64* __restrict__ counts) {
  const i64 row = global_thread();
  for (int tier = 0; tier < 4; ++tier) {
    const u32 lanes = __ballot_sync(ALL_LANES, row < num_rows && tier_n[row] == tier);
    if (threadIdx.x % 32 == 0 && lanes) atomicAdd(counts + tier, (u64)__popc(lanes));
  }
}

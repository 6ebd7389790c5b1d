// Small kernels with and without mistakes, for the shim's own tests.
typedef unsigned int u32;
typedef unsigned long long u64;

// Each warp reverses its lanes and adds up its votes.
__global__ void collectives(const int* in, int* reversed, int* sums, u32* votes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  reversed[i] = __shfl_sync(0xffffffffu, in[i], 31 - lane);
  int sum = in[i];
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  sums[i] = sum;
  votes[i] = __ballot_sync(0xffffffffu, in[i] & 1);
}

// Each CTA shifts its values by one through shared memory.
__global__ void shift(const int* in, int* out) {
  __shared__ int held[256];
  held[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
#ifndef PLANT_NO_BARRIER
  __syncthreads();
#endif
  out[blockIdx.x * blockDim.x + threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

__global__ void shift_dynamic(const int* in, int* out) {
  extern __shared__ unsigned char smem[];
  int* held = (int*)smem;
  held[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[(threadIdx.x + 1) % blockDim.x];
}

__global__ void unset_shared(int* out, int num_set) {
  __shared__ int held[32];
  if ((int)threadIdx.x < num_set) held[threadIdx.x] = 1;
  out[threadIdx.x] = held[threadIdx.x];
}

__global__ void atomics(const int* in, int* totals, u64* wide, float* real, int* swapped) {
  atomicAdd(totals, in[threadIdx.x]);
  atomicMin(totals + 1, in[threadIdx.x]);
  atomicMax(totals + 2, in[threadIdx.x]);
  atomicAdd(wide, 0x100000001ull);
  atomicAdd(real, 0.5f);
  if (atomicCAS(swapped, -1, (int)threadIdx.x) == -1) swapped[1] += 1;
}

// Half of a CTA waits at one barrier, half at another.
__global__ void divergent_barrier(int* out) {
  if (threadIdx.x < 32) __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}

// A lane waits for partners that never come.
__global__ void deadlock(int* out) {
  if (threadIdx.x == 3) __syncwarp(0xffffffffu);
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void divergent_collective(int* out) {
  if (threadIdx.x % 2) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
  else
    out[threadIdx.x] = __any_sync(0xffffffffu, 1);
}

__global__ void outside_mask(int* out) { out[threadIdx.x] = __shfl_sync(0xffffu, 1, 0); }

__global__ void out_of_bounds(int* out, int n) {
  if ((int)threadIdx.x <= n) out[threadIdx.x] = 1;
}

// One lane in four reads a strided element: what a trace has to count.
__global__ void strided(const int* in, int* out, int stride) {
  if (threadIdx.x % 4 == 0) out[threadIdx.x] = in[threadIdx.x * stride];
}

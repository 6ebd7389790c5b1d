// What a kernel needs of CUDA C++, for g++: `g++ -std=c++17`, this header first, then the unmodified .cu source.
//
// One fiber stands for one CUDA thread, warps have 32 lanes, and the CTAs of a grid run one after another. Barriers,
// shuffles, votes and atomics go to the engine (engine.cpp), which switches fibers, completes a collective when all
// lanes of its mask have arrived, and reports what can never complete. What CUDA leaves out is left out here as well
// (signed 64-bit atomicAdd, say), so that a mistake fails in g++ as it does in nvcc.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __CUDASIM__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// A thread_local in a function is static storage, one copy an OS thread, and one OS thread runs one CTA at a time.
// `extern __shared__ unsigned char smem[]` is the engine's array.
#define __shared__ thread_local

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }

namespace cudasim {

struct Thread {  // the part of an engine's fiber that kernels see
  uint3 thread_index;
  uint3 cta_index;
  unsigned lane, flat;
};
extern thread_local Thread* current;
extern dim3 cta_shape, grid_shape;

enum Collective { SYNCWARP, SHUFFLE, BALLOT, ANY, ALL, MATCH_ANY, ADD, MIN, MAX, UMIN, UMAX, AND, OR, XOR };
enum AtomicOp { A_ADD, A_MIN, A_MAX, A_UMIN, A_UMAX, A_EXCHANGE, A_CAS, A_AND, A_OR, A_XOR, A_ADD_FLOAT, A_ADD_DOUBLE };

uint64_t collective(unsigned mask, Collective kind, uint64_t value, int source, const char* file, int line);
int cta_barrier(int kind, int predicate, const char* file, int line);  // kind: 0 sync, 1 count, 2 and, 3 or
uint32_t atomic32(AtomicOp, void*, uint32_t value, uint32_t expected);
uint64_t atomic64(AtomicOp, void*, uint64_t value, uint64_t expected);
[[noreturn]] void fail(const char* format, ...);

template <class T>
inline uint64_t bits(T value) {
  static_assert(sizeof(T) <= 8, "collectives and atomics move at most 8 bytes");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
inline T unbits(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
inline T shuffle(unsigned mask, T value, int source, const char* file, int line) {
  return unbits<T>(collective(mask, SHUFFLE, bits(value), source, file, line));
}

}  // namespace cudasim

#define threadIdx (::cudasim::current->thread_index)
#define blockIdx (::cudasim::current->cta_index)
#define blockDim (::cudasim::cta_shape)
#define gridDim (::cudasim::grid_shape)
static constexpr int warpSize = 32;

// Where the call stands, for reports.
#define SIM_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SIM_AT) { ::cudasim::cta_barrier(0, 0, file, line); }
inline int __syncthreads_count(int p, SIM_AT) { return ::cudasim::cta_barrier(1, p, file, line); }
inline int __syncthreads_and(int p, SIM_AT) { return ::cudasim::cta_barrier(2, p, file, line); }
inline int __syncthreads_or(int p, SIM_AT) { return ::cudasim::cta_barrier(3, p, file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_AT) {
  ::cudasim::collective(mask, ::cudasim::SYNCWARP, 0, 0, file, line);
}
inline unsigned __ballot_sync(unsigned mask, int p, SIM_AT) {
  return (unsigned)::cudasim::collective(mask, ::cudasim::BALLOT, p != 0, 0, file, line);
}
inline int __any_sync(unsigned mask, int p, SIM_AT) {
  return (int)::cudasim::collective(mask, ::cudasim::ANY, p != 0, 0, file, line);
}
inline int __all_sync(unsigned mask, int p, SIM_AT) {
  return (int)::cudasim::collective(mask, ::cudasim::ALL, p != 0, 0, file, line);
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, SIM_AT) {
  return (unsigned)::cudasim::collective(mask, ::cudasim::MATCH_ANY, ::cudasim::bits(value), 0, file, line);
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIM_AT) {
  int me = ::cudasim::current->lane;
  return ::cudasim::shuffle(mask, value, (me & ~(width - 1)) | (source & (width - 1)), file, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIM_AT) {
  int me = ::cudasim::current->lane, source = me - (int)delta;
  return ::cudasim::shuffle(mask, value, source < (me & ~(width - 1)) ? me : source, file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIM_AT) {
  int me = ::cudasim::current->lane, source = me + (int)delta;
  return ::cudasim::shuffle(mask, value, source > (me | (width - 1)) ? me : source, file, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SIM_AT) {
  int me = ::cudasim::current->lane, source = me ^ lanes;
  return ::cudasim::shuffle(mask, value, source > (me | (width - 1)) ? me : source, file, line);
}
#define SIM_REDUCE(NAME, SIGNED, UNSIGNED)                                                               \
  inline int __reduce_##NAME##_sync(unsigned mask, int v, SIM_AT) {                                      \
    return (int)::cudasim::collective(mask, ::cudasim::SIGNED, (uint64_t)(int64_t)v, 0, file, line);     \
  }                                                                                                      \
  inline unsigned __reduce_##NAME##_sync(unsigned mask, unsigned v, SIM_AT) {                            \
    return (unsigned)::cudasim::collective(mask, ::cudasim::UNSIGNED, v, 0, file, line);                 \
  }
SIM_REDUCE(add, ADD, ADD)
SIM_REDUCE(min, MIN, UMIN)
SIM_REDUCE(max, MAX, UMAX)
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, SIM_AT) {
  return (unsigned)::cudasim::collective(mask, ::cudasim::OR, v, 0, file, line);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
template <class T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}
template <class T>
__forceinline__ T __ldcs(const T* p) {
  return *p;
}
template <class T>
__forceinline__ void __stcs(T* p, T v) {
  *p = v;
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

// CUDA has no signed 64-bit atomicAdd, atomicExch or atomicCAS, so there is none here.
#define SIM_ATOMIC(NAME, SIGNED, UNSIGNED)                                                                             \
  inline int NAME(int* p, int v) { return (int)::cudasim::atomic32(::cudasim::SIGNED, p, (uint32_t)v, 0); }            \
  inline unsigned NAME(unsigned* p, unsigned v) { return ::cudasim::atomic32(::cudasim::UNSIGNED, p, v, 0); }          \
  inline unsigned long long NAME(unsigned long long* p, unsigned long long v) {                                        \
    return ::cudasim::atomic64(::cudasim::UNSIGNED, p, v, 0);                                                          \
  }
#define SIM_ATOMIC_SIGNED_64(NAME, SIGNED)                                                              \
  inline long long NAME(long long* p, long long v) {                                                    \
    return (long long)::cudasim::atomic64(::cudasim::SIGNED, p, (uint64_t)v, 0);                        \
  }
SIM_ATOMIC(atomicMin, A_MIN, A_UMIN)
SIM_ATOMIC(atomicMax, A_MAX, A_UMAX)
SIM_ATOMIC(atomicAnd, A_AND, A_AND)
SIM_ATOMIC(atomicOr, A_OR, A_OR)
SIM_ATOMIC(atomicXor, A_XOR, A_XOR)
SIM_ATOMIC(atomicAdd, A_ADD, A_ADD)
SIM_ATOMIC(atomicExch, A_EXCHANGE, A_EXCHANGE)
SIM_ATOMIC_SIGNED_64(atomicMin, A_MIN)
SIM_ATOMIC_SIGNED_64(atomicMax, A_MAX)
inline float atomicAdd(float* p, float v) {
  return ::cudasim::unbits<float>(::cudasim::atomic32(::cudasim::A_ADD_FLOAT, p, (uint32_t)::cudasim::bits(v), 0));
}
inline double atomicAdd(double* p, double v) {
  return ::cudasim::unbits<double>(::cudasim::atomic64(::cudasim::A_ADD_DOUBLE, p, ::cudasim::bits(v), 0));
}
inline int atomicCAS(int* p, int c, int v) {
  return (int)::cudasim::atomic32(::cudasim::A_CAS, p, (uint32_t)v, (uint32_t)c);
}
inline unsigned atomicCAS(unsigned* p, unsigned c, unsigned v) {
  return ::cudasim::atomic32(::cudasim::A_CAS, p, v, c);
}
inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long c, unsigned long long v) {
  return ::cudasim::atomic64(::cudasim::A_CAS, p, v, c);
}

// ---- One entry a kernel for Python: it takes pointers to the arguments, and says how large each one is.
namespace cudasim {
template <auto KERNEL>
struct Entry;
template <class... Args, void (*KERNEL)(Args...)>
struct Entry<KERNEL> {
  template <std::size_t... I>
  static void unpack(void** arguments, std::index_sequence<I...>) {
    KERNEL(*static_cast<std::remove_reference_t<Args>*>(arguments[I])...);
  }
  static void call(void** arguments) { unpack(arguments, std::index_sequence_for<Args...>{}); }
  static int size_of_argument(unsigned i) {
    static const int sizes[] = {(int)sizeof(Args)..., -1};
    return i < sizeof...(Args) ? sizes[i] : -1;
  }
};
}  // namespace cudasim
#define SIM_EXPORT(ID, ...)                                                                              \
  extern "C" void sim_call_##ID(void** arguments) { ::cudasim::Entry<__VA_ARGS__>::call(arguments); }    \
  extern "C" int sim_size_##ID(unsigned i) { return ::cudasim::Entry<__VA_ARGS__>::size_of_argument(i); }

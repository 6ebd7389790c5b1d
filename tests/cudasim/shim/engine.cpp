// The engine under cudasim.h: fibers, warp collectives, CTA barriers, atomics, and reports of what cannot go on.
// Linked into each shared object of kernels; with CUDASIM_TRACE it also records every memory access (tracer.inc).
#include "cudasim.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef __shared__
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace cudasim {
constexpr size_t STACK_BYTES = 64 << 10;
constexpr size_t SHARED_BYTES = 227 << 10;  // what a CTA may ask for on sm_90
}  // namespace cudasim
alignas(1024) thread_local unsigned char smem[cudasim::SHARED_BYTES];  // dynamic shared memory of the running CTA

namespace cudasim {

enum State : uint8_t { READY, IN_COLLECTIVE, AT_BARRIER, EXITED };
enum Order { ASCENDING, DESCENDING, RANDOM };

struct Warp;
struct Fiber : Thread {
  void* stack_pointer;
  Warp* warp;
  State state;
  Collective kind;
  uint8_t source;
  unsigned mask;
  uint64_t value, result;
  const char* file;
  int line, barrier_kind;
  unsigned epoch;  // of the tracer
};
struct Warp {
  Fiber* lane[32];
  unsigned ready, waiting, live;  // one bit a lane
  int index;
};

struct Engine {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  char* stacks;
  size_t stack_bytes;
  int num_exited, num_at_barrier, next_warp;
  uint64_t random_state;
  void (*kernel)(void**);
  void** arguments;
  void* main_stack_pointer;

  uint64_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
  }
};

thread_local Thread* current;
thread_local Engine* engine;  // with `current` the only thread-local data beside shared memory
dim3 cta_shape, grid_shape;
static Order order = ASCENDING;
static uint64_t seed = 1;
static bool failed;
static char error_text[1 << 16];
static size_t dynamic_bytes;

static const char* kind_names[] = {"__syncwarp",       "__shfl_sync", "__ballot_sync", "__any_sync", "__all_sync",
                                   "__match_any_sync", "__reduce_add", "__reduce_min",  "__reduce_max", "__reduce_umin",
                                   "__reduce_umax",    "__reduce_and", "__reduce_or",   "__reduce_xor"};
static const char* base_name(const char* path) {
  const char* slash = path ? strrchr(path, '/') : nullptr;
  return slash ? slash + 1 : path ? path : "?";
}

// ---- Switching fibers: callee-saved registers on the stack, then the stack pointer.
extern "C" void cudasim_switch(void** save, void* to);
asm(R"(.text
.globl cudasim_switch
.hidden cudasim_switch
.type cudasim_switch,@function
cudasim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi); movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cudasim_switch,.-cudasim_switch
)");

// ---- Reports
static std::string where_it_waits(const Fiber& fiber) {
  char text[256] = "runnable";
  if (fiber.state == EXITED) snprintf(text, sizeof text, "exited");
  if (fiber.state == AT_BARRIER)
    snprintf(text, sizeof text, "at __syncthreads %s:%d", base_name(fiber.file), fiber.line);
  if (fiber.state == IN_COLLECTIVE)
    snprintf(text, sizeof text, "at %s(mask=%08x) %s:%d", kind_names[fiber.kind], fiber.mask, base_name(fiber.file),
             fiber.line);
  return text;
}

[[noreturn]] static void report_and_leave(const std::string& why) {
  if (!failed) {
    failed = true;
    uint3 cta = current->cta_index;
    size_t end = snprintf(error_text, sizeof error_text, "%s in CTA (%u,%u,%u)\n", why.c_str(), cta.x, cta.y, cta.z);
    for (const Warp& warp : engine->warps) {
      std::map<std::string, unsigned> lanes_at;
      for (int lane = 0; lane < 32; ++lane)
        if (warp.lane[lane]) lanes_at[where_it_waits(*warp.lane[lane])] |= 1u << lane;
      for (auto& [text, lanes] : lanes_at)
        if (end < sizeof error_text - 400)
          end += snprintf(error_text + end, sizeof error_text - end, "  warp %d lanes %08x: %s\n", warp.index, lanes,
                          text.c_str());
    }
  }
  cudasim_switch(&static_cast<Fiber*>(current)->stack_pointer, engine->main_stack_pointer);
  __builtin_unreachable();
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  uint3 t = current->thread_index;
  report_and_leave(std::string(text) + " (thread " + std::to_string(t.x) + "," + std::to_string(t.y) + "," +
                   std::to_string(t.z) + ")");
}

static std::string at(const Fiber* fiber) {
  return std::string(base_name(fiber->file)) + ":" + std::to_string(fiber->line);
}

// ---- The schedule
static Fiber* pick_random() {
  Engine& e = *engine;
  size_t start = e.random() % e.warps.size();
  for (size_t i = 0; i < e.warps.size(); ++i) {
    Warp& warp = e.warps[(start + i) % e.warps.size()];
    if (!warp.ready) continue;
    unsigned lanes = warp.ready;
    for (uint64_t skip = e.random() % __builtin_popcount(lanes); skip; --skip) lanes &= lanes - 1;
    return warp.lane[__builtin_ctz(lanes)];
  }
  return nullptr;
}

static Fiber* pick() {
  if (order == RANDOM) return pick_random();
  Engine& e = *engine;
  int last = (int)e.warps.size() - 1;
  for (int i = 0; i <= last; ++i) {
    Warp& warp = e.warps[e.next_warp];
    if (warp.ready) return warp.lane[order == DESCENDING ? 31 - __builtin_clz(warp.ready) : __builtin_ctz(warp.ready)];
    if (order == DESCENDING)
      e.next_warp = e.next_warp ? e.next_warp - 1 : last;
    else
      e.next_warp = e.next_warp < last ? e.next_warp + 1 : 0;
  }
  return nullptr;
}

static void yield_from(Fiber* me) {
  Fiber* next = failed ? nullptr : pick();
  if (next == me) return;
  if (!next) {
    if (!failed && engine->num_exited < (int)engine->fibers.size()) report_and_leave("deadlock: no thread can run");
    cudasim_switch(&me->stack_pointer, engine->main_stack_pointer);
    return;
  }
  current = next;
  cudasim_switch(&me->stack_pointer, next->stack_pointer);
}

#ifdef CUDASIM_TRACE
static void trace_warp_sync(Warp* warp, unsigned mask, bool orders_memory);
static void trace_cta_sync();
static void trace_atomic(void* address, int bytes, void* code);
#endif

// ---- Warp collectives
static void check_partners(const Warp* warp, const Fiber* me, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    const Fiber* other = warp->lane[__builtin_ctz(rest)];
    if (other->mask != me->mask || other->kind != me->kind)
      report_and_leave("warp collective mismatch: " + where_it_waits(*me) + " meets " + where_it_waits(*other));
    if (other->line != me->line)
      report_and_leave("one warp collective reached at two places: " + at(me) + " and " + at(other));
  }
}

static void shuffle_lanes(Warp* warp, const Fiber* me, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    Fiber* x = warp->lane[__builtin_ctz(rest)];
    if (!((lanes >> x->source) & 1))
      report_and_leave("lane " + std::to_string(x->lane) + " shuffles from lane " + std::to_string(x->source) +
                       ", which is not in the mask or has exited: " + at(me));
    x->result = warp->lane[x->source]->value;
  }
}

static void match_lanes(Warp* warp, unsigned lanes) {
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    Fiber* x = warp->lane[__builtin_ctz(rest)];
    x->result = 0;
    for (unsigned others = lanes; others; others &= others - 1)
      if (warp->lane[__builtin_ctz(others)]->value == x->value) x->result |= 1u << __builtin_ctz(others);
  }
}

static uint64_t reduce(Collective kind, uint64_t total, uint64_t v) {
  switch (kind) {
    case ADD: return total + v;
    case MIN: return std::min((int64_t)total, (int64_t)v);
    case MAX: return std::max((int64_t)total, (int64_t)v);
    case UMIN: return std::min(total, v);
    case UMAX: return std::max(total, v);
    case AND: return total & v;
    case OR: return total | v;
    default: return total ^ v;
  }
}

static void vote_or_reduce(Warp* warp, const Fiber* me, unsigned lanes) {
  unsigned votes = 0;
  uint64_t total = warp->lane[__builtin_ctz(lanes)]->value;
  for (unsigned rest = lanes; rest; rest &= rest - 1) {
    const Fiber* x = warp->lane[__builtin_ctz(rest)];
    if (x->value) votes |= 1u << x->lane;
    if (rest != lanes) total = reduce(me->kind, total, x->value);
  }
  if (me->kind == BALLOT) total = votes;
  if (me->kind == ANY) total = votes != 0;
  if (me->kind == ALL) total = votes == lanes;
  for (unsigned rest = lanes; rest; rest &= rest - 1) warp->lane[__builtin_ctz(rest)]->result = total;
}

// Lanes that have exited count as arrived, as on the device.
static bool try_complete(Warp* warp, Fiber* me) {
  unsigned lanes = me->mask & warp->live;
  if ((warp->waiting & lanes) != lanes) return false;
  check_partners(warp, me, lanes);
  if (me->kind == SHUFFLE) shuffle_lanes(warp, me, lanes);
  else if (me->kind == MATCH_ANY) match_lanes(warp, lanes);
  else if (me->kind != SYNCWARP) vote_or_reduce(warp, me, lanes);
#ifdef CUDASIM_TRACE
  trace_warp_sync(warp, lanes, me->kind == SYNCWARP);
#endif
  warp->waiting &= ~lanes;
  warp->ready |= lanes;
  for (unsigned rest = lanes; rest; rest &= rest - 1) warp->lane[__builtin_ctz(rest)]->state = READY;
  return true;
}

uint64_t collective(unsigned mask, Collective kind, uint64_t value, int source, const char* file, int line) {
  Fiber* me = static_cast<Fiber*>(current);
  if (!((mask >> me->lane) & 1))
    fail("%s at %s:%d: calling lane %u is not in mask %08x", kind_names[kind], base_name(file), line, me->lane, mask);
  me->mask = mask, me->kind = kind, me->value = value, me->source = (uint8_t)source;
  me->file = file, me->line = line, me->state = IN_COLLECTIVE;
  me->warp->ready &= ~(1u << me->lane);
  me->warp->waiting |= 1u << me->lane;
  if (!try_complete(me->warp, me) || order == RANDOM) yield_from(me);
  return me->result;
}

// ---- CTA barriers
static void complete_barrier() {
  int votes = 0, num_live = 0;
  const Fiber* first = nullptr;
  for (const Fiber& x : engine->fibers) {
    if (x.state != AT_BARRIER) continue;
    if (!first) first = &x;
    ++num_live;
    votes += x.value != 0;
    if (x.barrier_kind != first->barrier_kind || x.line != first->line)
      report_and_leave("one CTA barrier reached at two places: " + at(first) + " and " + at(&x));
  }
  for (Fiber& x : engine->fibers) {
    if (x.state != AT_BARRIER) continue;
    x.result = x.barrier_kind == 1 ? votes : x.barrier_kind == 2 ? votes == num_live : votes != 0;
    x.state = READY;
    x.warp->ready |= 1u << x.lane;
  }
  engine->num_at_barrier = 0;
#ifdef CUDASIM_TRACE
  trace_cta_sync();
#endif
}

int cta_barrier(int kind, int predicate, const char* file, int line) {
  Fiber* me = static_cast<Fiber*>(current);
  me->state = AT_BARRIER, me->barrier_kind = kind, me->value = predicate != 0, me->file = file, me->line = line;
  me->warp->ready &= ~(1u << me->lane);
  if (++engine->num_at_barrier + engine->num_exited == (int)engine->fibers.size()) complete_barrier();
  yield_from(me);
  return (int)me->result;
}

// ---- Atomics. In the random order they are places where another thread may go first.
template <class T>
static T combine(AtomicOp op, T old, T v) {
  using Signed = std::make_signed_t<T>;
  switch (op) {
    case A_ADD: return old + v;
    case A_MIN: return (Signed)v < (Signed)old ? v : old;
    case A_MAX: return (Signed)v > (Signed)old ? v : old;
    case A_UMIN: return std::min(v, old);
    case A_UMAX: return std::max(v, old);
    case A_AND: return old & v;
    case A_OR: return old | v;
    case A_XOR: return old ^ v;
    case A_ADD_FLOAT: return (T)bits(unbits<float>(old) + unbits<float>(v));
    case A_ADD_DOUBLE: return (T)bits(unbits<double>(old) + unbits<double>(v));
    default: return v;  // exchange
  }
}

template <class T>
static T atomic(AtomicOp op, T* address, T v, T expected, void* code) {
  if ((uintptr_t)address % sizeof(T)) fail("misaligned %zu-byte atomic", sizeof(T));
#ifdef CUDASIM_TRACE
  trace_atomic(address, sizeof(T), code);
#endif
  (void)code;
  if (order == RANDOM && engine->random() % 8 == 0) yield_from(static_cast<Fiber*>(current));
  T old = *address;
  if (op != A_CAS) *address = combine(op, old, v);
  else if (old == expected) *address = v;
  return old;
}
uint32_t atomic32(AtomicOp op, void* address, uint32_t v, uint32_t expected) {
  return atomic(op, (uint32_t*)address, v, expected, __builtin_return_address(0));
}
uint64_t atomic64(AtomicOp op, void* address, uint64_t v, uint64_t expected) {
  return atomic(op, (uint64_t*)address, v, expected, __builtin_return_address(0));
}

// ---- Shared memory starts as 0xCD in every CTA, so that a value that was never set shows.
struct Range {
  char* begin;
  size_t bytes;
};

static Range shared_memory() {  // this object's thread-local block
  Range found{nullptr, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        uintptr_t own = (uintptr_t)&fail;
        bool is_mine = false;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& header = info->dlpi_phdr[k];
          uintptr_t low = info->dlpi_addr + header.p_vaddr;
          is_mine |= header.p_type == PT_LOAD && own >= low && own < low + header.p_memsz;
        }
        if (!is_mine) return 0;
        for (int k = 0; k < info->dlpi_phnum; ++k)
          if (info->dlpi_phdr[k].p_type == PT_TLS && info->dlpi_tls_data)
            *(Range*)out = {(char*)info->dlpi_tls_data, info->dlpi_phdr[k].p_memsz};
        return 1;
      },
      &found);
  return found;
}

static void fill(char* begin, char* end) {
  asm volatile("" : "+r"(begin) : : "memory");
  if (end > begin) memset(begin, 0xCD, end - begin);
  asm volatile("" : : "r"(begin) : "memory");
}

static void poison(Range shared) {
  Thread* keep_current = current;
  Engine* keep_engine = engine;
  char* dynamic = (char*)smem;
  fill(shared.begin, dynamic);
  fill(dynamic, dynamic + dynamic_bytes);
  fill(dynamic + sizeof smem, shared.begin + shared.bytes);
  current = keep_current, engine = keep_engine;
}

// ---- Running a grid
static void thread_main() {
  engine->kernel(engine->arguments);
  Fiber* me = static_cast<Fiber*>(current);
  Warp* warp = me->warp;
  me->state = EXITED;
  warp->ready &= ~(1u << me->lane);
  warp->live &= ~(1u << me->lane);
  ++engine->num_exited;
  for (unsigned rest = warp->waiting; rest; rest &= rest - 1)  // some may have waited for this lane only
    if (warp->waiting >> __builtin_ctz(rest) & 1) try_complete(warp, warp->lane[__builtin_ctz(rest)]);
  if (engine->num_at_barrier && engine->num_at_barrier + engine->num_exited == (int)engine->fibers.size())
    complete_barrier();
  yield_from(me);
  __builtin_trap();
}

static void prepare_fiber(unsigned t, uint3 cta) {
  Fiber& x = engine->fibers[t];
  x.thread_index = {t % cta_shape.x, t / cta_shape.x % cta_shape.y, t / cta_shape.x / cta_shape.y};
  x.cta_index = cta, x.lane = t % 32, x.flat = t, x.warp = &engine->warps[t / 32], x.state = READY, x.epoch = 0;
  x.warp->lane[x.lane] = &x;
  x.warp->ready |= 1u << x.lane;
  x.warp->live |= 1u << x.lane;
  // Stacks begin at different offsets, so that they do not share the same cache sets.
  uintptr_t top = (uintptr_t)engine->stacks + (t + 1) * STACK_BYTES - ((t * 7) % 32) * 128;
  void** stack = (void**)(top & ~(uintptr_t)15);
  *--stack = nullptr;
  *--stack = (void*)thread_main;
  for (int k = 0; k < 6; ++k) *--stack = nullptr;
  x.stack_pointer = stack;
}

#ifdef CUDASIM_TRACE
#include "tracer.inc"
#endif

static void run_cta(uint64_t index, Range shared) {
  Engine& e = *engine;
  unsigned rest = (unsigned)(index / grid_shape.x);
  uint3 cta{(unsigned)(index % grid_shape.x), rest % grid_shape.y, rest / grid_shape.y};
  e.random_state = (seed * 0x9E3779B97F4A7C15ull) ^ (index * 0xD1B54A32D192ED03ull) ^ 0x1234567;
  if (!e.random_state) e.random_state = 1;
  e.num_exited = e.num_at_barrier = 0;
  e.next_warp = order == DESCENDING ? (int)e.warps.size() - 1 : 0;
  for (size_t w = 0; w < e.warps.size(); ++w) {
    e.warps[w] = Warp{};
    e.warps[w].index = (int)w;
  }
  for (unsigned t = 0; t < e.fibers.size(); ++t) prepare_fiber(t, cta);
  poison(shared);
#ifdef CUDASIM_TRACE
  trace_cta_begin();
#endif
  Fiber* first = pick();
  current = first;
  cudasim_switch(&e.main_stack_pointer, first->stack_pointer);
#ifdef CUDASIM_TRACE
  trace_cta_end();
#endif
  current = nullptr;
}

static void run_grid(void (*kernel)(void**), void** arguments) {
  Engine e{};
  engine = &e;
  e.kernel = kernel, e.arguments = arguments;
  e.fibers.resize(cta_shape.x * cta_shape.y * cta_shape.z);
  e.warps.resize((e.fibers.size() + 31) / 32);
  e.stack_bytes = e.fibers.size() * STACK_BYTES;
  e.stacks = (char*)mmap(nullptr, e.stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
  Range shared = shared_memory();
  uint64_t num_ctas = (uint64_t)grid_shape.x * grid_shape.y * grid_shape.z;
#ifdef CUDASIM_TRACE
  trace_begin(shared);
#endif
  for (uint64_t index = 0; index < num_ctas && !failed; ++index) run_cta(index, shared);
  munmap(e.stacks, e.stack_bytes);
  engine = nullptr;
}

}  // namespace cudasim

extern "C" {
void sim_schedule(int order, uint64_t seed) {
  cudasim::order = (cudasim::Order)order;
  cudasim::seed = seed;
}
const char* sim_error() { return cudasim::error_text; }

// 0 done, 1 the kernel did what it must not, 2 no device would launch it.
int sim_launch(void (*kernel)(void**), void** arguments, const unsigned* grid, const unsigned* cta, size_t shared) {
  using namespace cudasim;
  failed = false;
  uint64_t num_threads = (uint64_t)cta[0] * cta[1] * cta[2];
  bool fits = num_threads && num_threads <= 1024 && cta[2] <= 64 && grid[0] && grid[0] <= 0x7fffffffu && grid[1] &&
              grid[2] && grid[1] <= 65535 && grid[2] <= 65535 && shared <= SHARED_BYTES;
  if (!fits) {
    snprintf(error_text, sizeof error_text, "invalid launch: grid (%u,%u,%u), CTA (%u,%u,%u), %zu bytes shared",
             grid[0], grid[1], grid[2], cta[0], cta[1], cta[2], shared);
    return 2;
  }
  grid_shape = dim3(grid[0], grid[1], grid[2]), cta_shape = dim3(cta[0], cta[1], cta[2]), dynamic_bytes = shared;
  run_grid(kernel, arguments);
  return failed ? 1 : 0;
}
}

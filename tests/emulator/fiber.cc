#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "emulator/sanitizers.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace prnn::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr std::size_t kStackBytes = 256 << 10;  // frames are several times larger
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif
// Stacks are mapped this many at a time and without guard pages: a grid of 128 blocks has 32768 of
// them, and Linux allows a process 65530 mappings. A word at the end shows most overflows.
constexpr std::size_t kStacksPerMapping = 64;
constexpr std::uint64_t kCanary = 0x57ac4e9dca9a12b3;
// Stacks begin at different distances from their mappings' pages: at one distance, those of a warp
// would compete for the same few lines of the cache.
constexpr std::size_t kStagger = 7 * 64, kStaggers = 32;

struct Pool {
  std::mutex mutex;
  std::vector<Fiber*> idle;
  std::vector<char*> stacks;
};
Pool& pool() {
  static Pool* p = new Pool;  // never destroyed: a kernel may run while the program ends
  return *p;
}

// With pool().mutex held.
char* take_stack() {
  std::vector<char*>& stacks = pool().stacks;
  if (stacks.empty()) {
    void* mapped = mmap(nullptr, kStacksPerMapping * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    // Of most stacks one or two small pages are used.
    madvise(mapped, kStacksPerMapping * kStackBytes, MADV_NOHUGEPAGE);
    for (std::size_t i = 0; i < kStacksPerMapping; ++i)
      stacks.push_back(static_cast<char*>(mapped) + i * kStackBytes);
  }
  char* stack = stacks.back();
  stacks.pop_back();
  return stack;
}

}  // namespace

#ifdef __x86_64__
// Saves the registers a function must keep on the stack in use, and the stack's pointer in *from;
// then takes those of `to`. A new stack is made to look as if it had called this, with the first
// function and its argument in r12 and r13.
extern "C" __attribute__((visibility("hidden"))) void prnn_emulator_switch(void** from, void* to);
extern "C" __attribute__((visibility("hidden"))) void prnn_emulator_first();
asm(R"(
.text
.globl prnn_emulator_switch
.hidden prnn_emulator_switch
.type prnn_emulator_switch,@function
prnn_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size prnn_emulator_switch, .-prnn_emulator_switch
.globl prnn_emulator_first
.hidden prnn_emulator_first
.type prnn_emulator_first,@function
prnn_emulator_first:
  movq %r13, %rdi
  callq *%r12
  ud2
.size prnn_emulator_first, .-prnn_emulator_first
)");

namespace {
void* new_context(char* stack, void (*first)(Fiber*), Fiber* argument) {
  const std::size_t number = reinterpret_cast<std::uintptr_t>(stack) / kStackBytes;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 64 - number % kStaggers * kStagger);
  *--top = reinterpret_cast<void*>(prnn_emulator_first);  // what `ret` returns to
  *--top = nullptr;                                       // rbp
  *--top = nullptr;                                       // rbx
  *--top = reinterpret_cast<void*>(first);                // r12
  *--top = argument;                                      // r13
  *--top = nullptr;                                       // r14
  *--top = nullptr;                                       // r15
  return top;
}
void switch_context(void** from, void* to) { prnn_emulator_switch(from, to); }
}  // namespace
#else
namespace {
void first_of_context(unsigned function_high, unsigned function_low, unsigned argument_high,
                      unsigned argument_low) {
  const auto join = [](unsigned high, unsigned low) {
    return static_cast<std::uintptr_t>((std::uint64_t{high} << 32) | low);
  };
  reinterpret_cast<void (*)(Fiber*)>(join(function_high, function_low))(
      reinterpret_cast<Fiber*>(join(argument_high, argument_low)));
}
void* new_context(char* stack, void (*first)(Fiber*), Fiber* argument) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  const std::uint64_t f = reinterpret_cast<std::uintptr_t>(first);
  const std::uint64_t a = reinterpret_cast<std::uintptr_t>(argument);
  makecontext(context, reinterpret_cast<void (*)()>(first_of_context), 4,
              static_cast<unsigned>(f >> 32), static_cast<unsigned>(f),
              static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
  return context;
}
void switch_context(void** from, void* to) {
  if (*from == nullptr) *from = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(*from), static_cast<ucontext_t*>(to));
}
}  // namespace
#endif

Fiber* Fiber::take() {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  if (p.idle.empty()) return new Fiber;
  Fiber* fiber = p.idle.back();
  p.idle.pop_back();
  return fiber;
}

void Fiber::give_back(Fiber* fiber) {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  p.idle.push_back(fiber);
}

Fiber::Fiber() : stack_(take_stack()) {
  std::memcpy(stack_, &kCanary, sizeof(kCanary));
  fiber_context_ = new_context(stack_, &Fiber::enter, this);
#ifdef __SANITIZE_THREAD__
  fiber_thread_ = __tsan_create_fiber(0);
#endif
}

bool Fiber::overflowed() const { return std::memcmp(stack_, &kCanary, sizeof(kCanary)) != 0; }

void Fiber::start(void (*job)(void*), void* argument, const std::string& name) {
  job_ = job;
  argument_ = argument;
#ifdef __SANITIZE_THREAD__
  __tsan_set_fiber_name(fiber_thread_, name.c_str());
#else
  static_cast<void>(name);
#endif
}

void Fiber::enter(Fiber* self) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &self->host_stack_, &self->host_stack_bytes_);
#endif
  self->loop();
}

void Fiber::loop() {
  const sanitizers::Ignore ignore;
  for (;;) {
    job_(argument_);
    suspend();
  }
}

void Fiber::resume() {
#ifdef __SANITIZE_THREAD__
  host_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_thread_, 1);  // 1: orders nothing
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&host_fake_stack_, stack_, kStackBytes);
#endif
  switch_context(&host_context_, fiber_context_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(host_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(host_thread_, 1);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fiber_fake_stack_, host_stack_, host_stack_bytes_);
#endif
  switch_context(&fiber_context_, host_context_);
#ifdef __SANITIZE_ADDRESS__
  // The host's stack anew: the next job may have been started by another thread.
  __sanitizer_finish_switch_fiber(fiber_fake_stack_, &host_stack_, &host_stack_bytes_);
#endif
}

}  // namespace prnn::emulator

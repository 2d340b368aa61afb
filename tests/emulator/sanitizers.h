// What the sanitizers have to be told of a program that switches stacks by itself.
//
// AddressSanitizer must know which stack it is on. ThreadSanitizer must take the fibers for threads
// and must not take the emulator for part of the program: of the emulator it hears only what the
// device guarantees, as release and acquire, and which accesses the operations stand for.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size);
}
#endif
#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* object);
void __tsan_release(void* object);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
void __tsan_read8(void* address);
void __tsan_write8(void* address);
std::uint64_t __tsan_atomic64_load(const volatile std::uint64_t* address, int order);
std::uint64_t __tsan_atomic64_fetch_add(volatile std::uint64_t* address, std::uint64_t v,
                                        int order);
}
#endif

namespace prnn::emulator::sanitizers {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThread = true;
// While one lives, the accesses of this thread are the emulator's own.
struct Ignore {
  Ignore() { __tsan_ignore_thread_begin(); }
  ~Ignore() { __tsan_ignore_thread_end(); }
  Ignore(const Ignore&) = delete;
};
// Within an Ignore: the kernel runs.
struct Observe {
  Observe() { __tsan_ignore_thread_end(); }
  ~Observe() { __tsan_ignore_thread_begin(); }
  Observe(const Observe&) = delete;
};
inline void release(void* object) { __tsan_release(object); }
inline void acquire(void* object) { __tsan_acquire(object); }
inline void plain_read8(void* p) { __tsan_read8(p); }
inline void plain_write8(void* p) { __tsan_write8(p); }
inline void relaxed_read8(const void* p) {
  __tsan_atomic64_load(static_cast<const std::uint64_t*>(p), __ATOMIC_RELAXED);
}
// An atomic write that leaves the value: the store itself may arrive later.
inline void relaxed_write8(void* p) {
  __tsan_atomic64_fetch_add(static_cast<std::uint64_t*>(p), 0, __ATOMIC_RELAXED);
}
#else
inline constexpr bool kThread = false;
struct Ignore {
  Ignore() {}
  ~Ignore() {}
};
struct Observe {
  Observe() {}
  ~Observe() {}
};
inline void release(void*) {}
inline void acquire(void*) {}
inline void plain_read8(void*) {}
inline void plain_write8(void*) {}
// These touch the memory, so that AddressSanitizer sees the access where the kernel makes it.
inline void relaxed_read8(const void* p) {
#ifdef __SANITIZE_ADDRESS__
  static_cast<void>(*static_cast<const volatile std::uint64_t*>(p));
#else
  static_cast<void>(p);
#endif
}
inline void relaxed_write8(void* p) { relaxed_read8(p); }
#endif

}  // namespace prnn::emulator::sanitizers

// A stack that a host thread can run on for a while: what a thread of the grid is made of.
#pragma once
#include <cstddef>
#include <string>

namespace prnn::emulator {

// Runs one job after another, and is kept between launches with its stack.
class Fiber {
 public:
  // Of all fibers that are not in use, one; a new one if there is none.
  static Fiber* take();
  static void give_back(Fiber* fiber);

  // The next resume() starts job(argument). The job before must have returned. The name is for
  // ThreadSanitizer's reports.
  void start(void (*job)(void*), void* argument, const std::string& name);
  // From the host's stack: runs until the fiber calls suspend(), or its job returns.
  void resume();
  // From the fiber: back to the host's stack. Returns in the next resume().
  void suspend();
  // Whether the job has used up nearly all of the stack at some time.
  bool overflowed() const;

 private:
  Fiber();
  static void enter(Fiber* self);
  void loop();

  char* stack_;  // its lowest address
  void (*job_)(void*) = nullptr;
  void* argument_ = nullptr;
  void *fiber_context_ = nullptr, *host_context_ = nullptr;
  // For the sanitizers.
  void *fiber_fake_stack_ = nullptr, *host_fake_stack_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
  void *fiber_thread_ = nullptr, *host_thread_ = nullptr;
};

}  // namespace prnn::emulator

// A wait for another block, which lasts as long as the watchdog lets it. All blocks of a team run
// at once, so that a step of one takes microseconds: a wait of seconds means that one does not run
// (or has failed), and would last for ever.
#pragma once
#include "cuda/ptx.h"
#include "cuda/task.h"
#include "cuda/tile.h"

namespace prnn {

class Wait {
 public:
  // One more turn, of a wait of step s of a job. Seldom looks at the clock.
  template <class Job>
  PRNN_DEVICE void turn(const Watchdog& watchdog, Exchange exchange, const Job& job, int s) {
    ptx::spin();
    if (++turns_ % ptx::kTurnsPerLook != 0 || watchdog.patience == 0) return;
    const std::uint32_t now = ptx::globaltimer();
    if (turns_ == ptx::kTurnsPerLook)
      began_ = now;
    else if (now - began_ > watchdog.patience)
      give_up(watchdog.report, static_cast<std::int32_t>(exchange), job.group, job.first_row, s);
  }

 private:
  // The first one says where; all others wait for the end that it makes.
  PRNN_DEVICE static void give_up(WaitReport* report, std::int32_t exchange, std::int32_t group,
                                  std::int32_t first_row, std::int32_t step) {
    if (ptx::atom_cas(&report->state, WaitReport::kNone, WaitReport::kBeingWritten) !=
        WaitReport::kNone)
      while (true) ptx::nanosleep();
    report->exchange = exchange;
    report->block = ptx::ctaid();
    report->group = group;
    report->first_row = first_row;
    report->step = step;
    ptx::fence_acq_rel_sys();
    ptx::atom_cas(&report->state, WaitReport::kBeingWritten, WaitReport::kWritten);
    ptx::fence_acq_rel_sys();
    ptx::trap();
  }

  std::uint32_t turns_ = 0, began_ = 0;
};

// How long a warp waits before it looks for what others publish. Who looks too early looks once
// more, and has lost the time of a load, and been in the way of others' loads: so longer after a
// look in vain, and a little shorter after one that found all. Few looks are in vain then, on any
// device and in any layer.
class Delay {
 public:
  PRNN_DEVICE void pass() const {
    const std::uint32_t began = ptx::clock();
    while (ptx::clock() - began < cycles_) {
    }
  }
  PRNN_DEVICE void learn(bool found_all) {
    if (found_all)
      cycles_ -= cycles_ < kShorter ? cycles_ : kShorter;
    else
      cycles_ += cycles_ < kMost ? kLonger : 0;
  }

 private:
  // One in 17 looks is in vain; who waits for a team that is late does not wait much longer.
  static constexpr std::uint32_t kLonger = 32, kShorter = 2, kMost = 1024;
  std::uint32_t cycles_ = 0;
};

}  // namespace prnn

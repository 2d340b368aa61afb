#include "cpu/elementwise.h"

#include <algorithm>

#include "cpu/huge_pages.h"
#include "cpu/plan/cost.h"

namespace prnn {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Where the time that others take off is more than it takes to call them.
int threads_for(const Machine& machine, const ElementwiseRecurrence& p, int most) {
  const double value = p.dtype == Dtype::kFloat32 ? 4 : 2;
  const double elements = static_cast<double>(p.rows * p.width) * static_cast<double>(p.steps);
  const double bytes = value * elements * (p.is_constant ? 2 : 3);
  const double us = read_us(machine, machine.rates.packed, bytes, bytes, 1);
  const double saved = us * (1 - 1 / (most * machine.rates.together));
  return p.rows > 1 && saved > machine.rates.join_us ? most : 1;
}

}  // namespace

void run(const Isa& isa, const ElementwiseRecurrence& p, ThreadPool& pool) {
  if (p.rows * p.steps * p.width == 0) return;
  const int threads = threads_for(this_machine(isa.width), p, pool.threads());
  prefer_huge_pages(p.y, (p.dtype == Dtype::kFloat32 ? 4 : 2) * p.rows * p.steps * p.width);
  // Threads that share a row's lines of memory would be slower than one alone.
  const std::int64_t pieces = ceil_div(p.width, kMostElements);
  parallel_for(pool, threads, p.rows * pieces, [&](std::int64_t n) {
    const std::int64_t first = n % pieces * kMostElements;
    isa.recur(p, n / pieces, first, std::min(p.width, first + kMostElements));
  });
}

}  // namespace prnn

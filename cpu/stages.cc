#include "cpu/stages.h"

#include <algorithm>

namespace prnn {
namespace {

constexpr std::int64_t kMostParts = 8;

bool by_columns(const Work& work) { return work.blocking.partition == Partition::kColumns; }

}  // namespace

// A phase's products and what is made of them: one stage, or two where columns are multiplied.
void Stages::add_work(std::vector<Stage>& to, const Work& work, int phase, std::int64_t rows,
                      TaskQueue& queue) {
  if (by_columns(work))
    to.push_back([=, &work](const At& at) {
      work.multiply_columns(at.of, phase, rows, at.thread, at.threads);
    });
  to.push_back([=, &work, &queue](const At& at) {
    work.advance(at.of, phase, rows, at.thread, at.threads, queue, at.n);
  });
}

Stages Stages::of_call(const Work& steps, const Work* projection, const Packing& packing,
                       TaskQueue& queue, std::int64_t count, std::int64_t threads) {
  const std::int64_t rows = steps.problem.shape.batch;
  const std::int64_t steps_per_chunk = projection ? projection->problem.projection.steps : count;
  Stages out(count, steps_per_chunk);

  const std::int64_t packing_parts = std::min(kMostParts, packing.each());
  for (std::int64_t part = 0; part < packing_parts; ++part)
    out.once_.push_back([=, &packing](const At& at) {
      const std::int64_t first = packing.each() * part / packing_parts;
      const std::int64_t end = packing.each() * (part + 1) / packing_parts;
      for (std::int64_t of = at.thread; of < threads; of += at.threads)
        for (std::int64_t n = first; n < end; ++n) packing.pack(n, of);
    });

  if (projection) {
    const std::int64_t chunk_rows = rows * steps_per_chunk;
    if (widens(projection->problem))
      out.of_chunk_.push_back([=](const At& at) {
        const std::int64_t first = chunk_rows * at.thread / at.threads;
        const std::int64_t end = chunk_rows * (at.thread + 1) / at.threads;
        projection->widen({0, projection->problem.shape.groups, first, end, 0, 0}, at.of);
      });
    if (projection->blocking.source == WeightSource::kPrepacked) {
      out.once_ = out.of_chunk_;
      const std::int64_t panels = projection->blocking.panels[0];
      const std::int64_t parts = std::clamp<std::int64_t>(panels / threads, 1, kMostParts);
      for (std::int64_t part = 0; part < parts; ++part)
        out.once_.push_back([=](const At& at) {
          const std::int64_t first = panels * part / parts;
          const std::int64_t all = panels * (part + 1) / parts - first;
          projection->advance_panels(0, 0, chunk_rows, first + all * at.thread / at.threads,
                                     first + all * (at.thread + 1) / at.threads,
                                     projection->packed);
        });
    }
    out.add_work(out.of_chunk_, *projection, 0, chunk_rows, queue);
    if (projection->blocking.source == WeightSource::kPrepacked)
      out.done_ = static_cast<std::int64_t>(out.of_chunk_.size());
  }
  for (int phase = 0; phase < steps.blocking.phases; ++phase)
    out.add_work(out.of_step_, steps, phase, rows, queue);
  return out;
}

Stages Stages::of_one_step(const Work& steps, const Work* projection, TaskQueue& queue) {
  const std::int64_t rows = steps.problem.shape.batch;
  Stages out(1, 1);
  // What a thread makes of the one step's a_x is what it needs: the same units of each gate.
  const bool in_one = projection && projection->is_unpacked() && steps.is_unpacked() &&
                      steps.problem.shape.hidden % steps.isa.width == 0;
  const auto project_own = [=, &steps](const At& at) {
    const std::int64_t panels = steps.blocking.panels[0];
    const std::int64_t first = steps.first_panel(0, at.thread, at.threads);
    const std::int64_t end = steps.first_panel(0, at.thread + 1, at.threads);
    for (std::int64_t gate = 0; gate < numbers(steps.problem.cell).gates; ++gate)
      projection->advance_panels(0, 0, rows, gate * panels + first, gate * panels + end,
                                 projection->packed);
  };
  if (projection && !in_one) out.add_work(out.of_chunk_, *projection, 0, rows, queue);
  for (int phase = 0; phase < steps.blocking.phases; ++phase) {
    const bool projects = in_one && phase == 0;
    const bool projects_columns = projects && by_columns(*projection);
    if (projects_columns || by_columns(steps))
      out.of_step_.push_back([=, &steps](const At& at) {
        if (projects_columns) projection->multiply_columns(0, 0, rows, at.thread, at.threads);
        if (by_columns(steps)) steps.multiply_columns(0, phase, rows, at.thread, at.threads);
      });
    out.of_step_.push_back([=, &steps, &queue](const At& at) {
      if (projects) project_own(at);
      steps.advance(0, phase, rows, at.thread, at.threads, queue, at.n);
    });
  }
  return out;
}

std::int64_t Stages::count() const {
  const std::int64_t chunks = ceil_div(steps_, steps_per_chunk_);
  return static_cast<std::int64_t>(once_.size() + chunks * of_chunk_.size() +
                                   steps_ * of_step_.size()) -
         done_;
}

void Stages::take(std::int64_t n, std::int64_t thread, std::int64_t threads) const {
  const auto once = static_cast<std::int64_t>(once_.size());
  if (n < once) return once_[n]({n, 0, thread, threads});
  const auto of_chunk = static_cast<std::int64_t>(of_chunk_.size());
  const auto of_step = static_cast<std::int64_t>(of_step_.size());
  const std::int64_t each = of_chunk + steps_per_chunk_ * of_step, at = n - once + done_;
  const std::int64_t chunk = at / each, in_chunk = at % each;
  if (in_chunk < of_chunk) return of_chunk_[in_chunk]({n, chunk, thread, threads});
  const std::int64_t step = chunk * steps_per_chunk_ + (in_chunk - of_chunk) / of_step;
  of_step_[(in_chunk - of_chunk) % of_step]({n, step, thread, threads});
}

}  // namespace prnn

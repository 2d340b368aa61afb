// A phase of a step: products of rows with panels of weights, and then the steps they are for.
#pragma once
#include "cpu/packing.h"
#include "cpu/prepared_rows.h"
#include "cpu/product.h"
#include "cpu/row_blocks.h"
#include "cpu/unpacked.h"

namespace prnn::PRNN_ISA {

// Products wait for their steps until there are some: steps of a row that are taken together share
// what it takes to make out where the row lies. So many rows wait at most, or a block of more, and
// so many floats, which the first-level cache holds besides weights.
inline constexpr int kMostPendingRows = 16, kMostPendingFloats = 256 * kWidth;
// Words of weights: where more rows are multiplied, block after block, these stay in the caches.
inline constexpr std::int64_t kCachedWords = 16 << 10;

PRNN_HD std::int64_t most_pending_rows(const Blocking& blocking) {
  return max(kMostPendingRows, blocking.rows);
}

// Panels of one size, side by side, whose products wait together.
struct AdjacentPanels {
  static constexpr int kMost = 8;
  Panel panels[kMost];
  int count = 0;

  PRNN_HD int lanes() const { return count * panels[0].units.lanes(); }
  // For one more, if so many rows multiply weights of such a depth.
  PRNN_HD bool has_room_for(const Units& units, const Blocking& blocking, std::int64_t depth,
                            std::int64_t rows) const {
    if (count == 0) return true;
    const std::int64_t all = lanes() + units.lanes(), most_rows = most_pending_rows(blocking);
    return count < kMost && units.vectors == panels[0].units.vectors &&
           all * min(rows, most_rows) <= kMostPendingFloats &&
           (rows <= most_rows || all * depth <= kCachedWords);
  }
};

PRNN_HD Product product_of(const RowBlock& block, int vectors) {
  return (*block.products)[block.count][vectors];
}

// The products with a panel, micropanel by micropanel, of those of some blocks of rows that have
// them.
PRNN_HD void multiply(const Blocking& blocking, std::int64_t depth, const Panel& panel,
                      const RowBlock* blocks, int count, float* out) {
  const Units& units = panel.units;
  const auto visit = [&](auto&& f) __attribute__((always_inline)) {
    float* at = out;
    for (const RowBlock* block = blocks; block < blocks + count; ++block) {
      if (block->multiplies) f(*block, at);
      at += block->count * units.lanes();
    }
  };
  for (int v = 0; v < units.product_vectors; v += units.micropanel_vectors) {
    const Micropanel micropanel = units.micropanel(v, slices(blocking, depth));
    visit([&](const RowBlock& block, float* at) __attribute__((always_inline)) {
      product_of(block, micropanel.vectors)(panel.weights + micropanel.first_word, block.inputs,
                                            depth, at + micropanel.first_lane(), units.lanes());
    });
  }
}

// The products of all the part's rows with some panels, and their steps.
[[gnu::noinline]] inline void advance_panels(RowBlocks& all, const Blocking& blocking,
                                             const AdjacentPanels& adjacent, const Part& part,
                                             PreparedRows* prepared) {
  alignas(64) float products[max(kMostPendingFloats, kMaxRows * kMaxVectors * kWidth)];
  const Units &front = adjacent.panels[0].units, &back = adjacent.panels[adjacent.count - 1].units;
  const bool ascends = front.first <= back.first;
  const std::int64_t depth = all.depth;
  std::int64_t most_rows = min(min(part.last_row - part.first_row, most_pending_rows(blocking)),
                               max(kMostPendingFloats / adjacent.lanes(), blocking.rows));
  const bool is_int8 = blocking.weights == WeightFormat::kInt8;
  if (is_int8) most_rows = min(most_rows, Int8::most_rows(depth));
  const std::int64_t panel_stride = most_rows * front.lanes();
  const Pending pending{all.units,
                        ascends ? front.first : back.first,
                        adjacent.count * front.vectors,
                        front.vectors,
                        products,
                        front.lanes(),
                        front.product_lanes(),
                        panel_stride};
  RowBlock blocks[max(kMostPendingRows, kMaxRows)];
  if (prepared) prepared->start_over();
  for (bool is_more = true; is_more;) {
    int count = 0;
    std::int64_t rows = 0;
    if (prepared) prepared->release();
    while ((count == 0 || rows + all.next_size() <= most_rows) &&
           (is_more = all.next(blocks[count]))) {
      RowBlock& block = blocks[count++];
      if (prepared) prepared->put(block, depth);
      if (!block.multiplies)
        for (int n = 0; n < adjacent.count; ++n)
          __builtin_memset(products + n * panel_stride + rows * front.lanes(), 0,
                           sizeof(float) * block.count * front.lanes());
      rows += block.count;
    }
    for (int n = 0; n < adjacent.count; ++n) {
      float* const out = products + (ascends ? n : adjacent.count - 1 - n) * panel_stride;
      multiply(blocking, depth, adjacent.panels[n], blocks, count, out);
    }
    for (int b = 0, first = 0; b < count; first += blocks[b++].count)
      all.take_steps(pending, blocks[b], first);
  }
}

// The i-th panel that a part takes in a step, packed if its turn has come. Every other step they
// are taken the other way round: the weights read last are in the cache still.
template <int kPhase, class Pass>
PRNN_HD Panel take_panel(const Pass& pass, const Blocking& blocking, float* packed,
                         std::int64_t group, std::int64_t step, const Part& part, std::int64_t i) {
  const std::int64_t n = step % 2 == 0 ? part.first_panel + i : part.last_panel - 1 - i;
  const Units units = units_of(blocking, kPhase, Pass::products(kPhase), n);
  if constexpr (requires { Pass::kPacksInTurn; })
    if (blocking.source == WeightSource::kPackedPerPanel) {
      const Panel panel{packed, units};
      pack_panels(pass, group, kPhase, &panel, 1);
      return panel;
    }
  return {packed + panel_at(blocking, group, kPhase, units), units};
}

// The part's share of a phase whose steps do nothing but put products in their places, where no row
// is another than the next: each micropanel is multiplied by many of them while it is in the
// caches.
template <int kPhase, class Pass>
void put_products(const Pass& pass, const Blocking& blocking, float* packed, const Part& part,
                  std::int64_t step) {
  constexpr int kMostBlocks = 16;
  const std::int64_t depth = pass.depth(kPhase), all_slices = slices(blocking, depth);
  for (std::int64_t g = part.first_group; g < part.last_group; ++g)
    for (std::int64_t i = 0; i < part.last_panel - part.first_panel; ++i) {
      const auto [weights, units] = take_panel<kPhase>(pass, blocking, packed, g, step, part, i);
      RowBlocksOf<kPhase, Pass> all(pass, blocking, g, step, part);
      RowBlock blocks[kMostBlocks];
      for (bool is_more = true; is_more;) {
        int count = 0;
        while (count < kMostBlocks && (is_more = all.next(blocks[count]))) ++count;
        for (int v = 0; v < units.product_vectors; v += units.micropanel_vectors) {
          const Micropanel micropanel = units.micropanel(v, all_slices);
          for (const RowBlock* block = blocks; block < blocks + count; ++block)
            product_of(*block, micropanel.vectors)(
                weights + micropanel.first_word, block->inputs, depth,
                pass.output(g, block->rows[0]) + units.first + micropanel.first_lane(),
                pass.output_stride());
        }
      }
    }
}

// The part's share of a phase, panel by panel; `prepared` where rows are.
template <int kPhase, class Pass>
[[gnu::noinline]] void advance_all_panels(const Pass& pass, const Blocking& blocking, float* packed,
                                          const Part& part, std::int64_t step,
                                          PreparedRows* prepared) {
  const std::int64_t rows = part.last_row - part.first_row, depth = pass.depth(kPhase);
  for (std::int64_t g = part.first_group; g < part.last_group; ++g) {
    AdjacentPanels adjacent;
    if (prepared) prepared->forget();
    const auto advance_adjacent = [&] {
      if (adjacent.count == 0) return;
      RowBlocksOf<kPhase, Pass> all(pass, blocking, g, step, part);
      advance_panels(all, blocking, adjacent, part, prepared);
      adjacent.count = 0;
    };
    for (std::int64_t i = 0; i < part.last_panel - part.first_panel; ++i) {
      if (blocking.source == WeightSource::kPackedPerPanel) advance_adjacent();
      const Panel panel = take_panel<kPhase>(pass, blocking, packed, g, step, part, i);
      if (!adjacent.has_room_for(panel.units, blocking, depth, rows)) advance_adjacent();
      adjacent.panels[adjacent.count++] = panel;
    }
    advance_adjacent();
  }
}
// The place of prepared rows is on the stack of calls that prepare some, and of no others.
template <int kPhase, class Pass>
[[gnu::noinline]] void advance_prepared(const Pass& pass, const Blocking& blocking, float* packed,
                                        const Part& part, std::int64_t step) {
  PreparedRows prepared(*blocking.products);
  advance_all_panels<kPhase>(pass, blocking, packed, part, step, &prepared);
}

// The part's share of a phase.
template <int kPhase, class Pass>
void advance_phase(const Pass& pass, const Blocking& blocking, float* packed, const Part& part,
                   std::int64_t step) {
  if constexpr (requires { pass.weight_rows(0, 0); })
    if (blocking.source == WeightSource::kUnpacked)
      return Unpacked<kPhase, Pass>{pass, blocking, packed, part, step}.advance();
  if constexpr (requires { pass.output(0, 0); })
    if (blocking.weights != WeightFormat::kInt8 && pass.rows_are_alike(step) &&
        pass.units(kPhase) % kWidth == 0)
      return put_products<kPhase>(pass, blocking, packed, part, step);
  if (blocking.products->prepare != nullptr)
    return advance_prepared<kPhase>(pass, blocking, packed, part, step);
  advance_all_panels<kPhase>(pass, blocking, packed, part, step, nullptr);
}

}  // namespace prnn::PRNN_ISA

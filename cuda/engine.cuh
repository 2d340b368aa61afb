// The engine: the loop over time that runs a pass on a team of blocks. One template for every cell,
// pass, number format and exchange.
//
// A step, in every block at once:
//   1  the team's published values, times this block's rows of the matrix (each warp some k blocks)
//   2  the warps' partial sums, through shared memory, in a fixed order: results do not depend on
//      timing
//   3  the cell's step, a thread per unit and batch row, which keeps the carry in registers; of
//      cells with layer norm, in parts, between which the team adds up (cuda/row_norms.cuh)
//   4  publish
//
// A block of a streamed tile does so with one panel of its rows after the other.
//
// Steps for which all rows of a job have ended are left out: nothing is multiplied or exchanged.
#pragma once
#include "cuda/grid_exchange.cuh"
#include "cuda/partial_sums.cuh"
#include "cuda/probe.cuh"
#include "cuda/row_norms.cuh"

namespace prnn {

template <class Pass, Number kNumber, Exchange kExchange, Tile kTile>
class Engine {
 public:
  static constexpr int kUnits = units_per_block(kTile, Pass::kProducts, kNumber);

  PRNN_DEVICE explicit Engine(const Task<Pass>& task)
      : task_(task),
        place_(Place::here(kTile)),
        weights_(place_, layout(task), task),
        sums_(layout(task)),
        exchange_(task, layout(task), place_),
        norms_(task),
        bias_(reinterpret_cast<float*>(ptx::shared() + static_cast<int>(layout(task).bias))),
        first_unit_(first_unit(0)) {
    if constexpr (kIsStreamed)
      carries_ = reinterpret_cast<Carry*>(ptx::shared() + static_cast<int>(layout(task).carries));
  }

  template <class Probe = NoProbe>
  PRNN_DEVICE void run(Probe&& probe = {}) {
    const auto& shape = task_.pass.shape;
    const int slices = static_cast<int>(ceil_div(shape.batch, kTile.columns()));
    const std::int64_t jobs = std::int64_t{shape.groups} * slices;
    const int team = ptx::ctaid() / task_.blocks;
    const int end = static_cast<int>(jobs * (team + 1) / task_.teams);
    int group = -1;
    for (int n = static_cast<int>(jobs * team / task_.teams); n < end; ++n) {
      const Job job = job_of(n / slices, n % slices * kTile.columns());
      if (job.group != group) {
        group = job.group;
        ptx::bar_sync();  // the bias of the group before is no longer read
        load(group);
      }
      exchange_.begin(job);
      if constexpr (kNormsRows<Pass>) norms_.begin(job);
      run(job, probe);
    }
    exchange_.end();
  }

 private:
  using Job = prnn::Job<Pass>;
  static constexpr int kColumns = kTile.columns(), kGranule = granule_units(kNumber);
  static constexpr int kElements = elements_per_thread(kTile, kUnits);
  static constexpr bool kIsStreamed = kTile.is_streamed();
  using Io = UnitIo<kNumber>;
  using Carry = typename Pass::Carry;
  using Fetched = typename Pass::Fetched;
  using Inputs = typename Pass::Inputs;
  using SequenceRows = typename Pass::SequenceRows;
  using Published = Vec<Pass::kPublished>;
  using ExchangeType = typename ExchangeOf<kExchange, Pass, kNumber, kTile>::Type;
  using Target = typename ExchangeType::Target;

  using Norms = RowNormsOf<Pass, kNumber, kTile>;
  using WeightsType = std::conditional_t<kIsStreamed, StreamedWeights<kNumber, kTile>,
                                         Weights<kNumber, kTile, kIsPlain<Pass>>>;

  PRNN_DEVICE static SharedLayout layout(const Task<Pass>& task) {
    return SharedLayout::of(kTile, kExchange, depth_of<Pass>(task.padded), kNumber,
                            kIsStreamed ? task.panels : Panels{});
  }
  // Of the block's n-th panel.
  PRNN_DEVICE int first_unit(int panel) const {
    return (panel * task_.blocks + ptx::ctaid() % task_.blocks) * kUnits;
  }

  // The e-th unit and batch row that this thread steps; neighbouring threads, neighbouring units.
  struct Element {
    int local_unit, column, unit, row;
    bool exists;  // in the layer and the batch
  };
  PRNN_DEVICE Element element(const Job& job, int e) const {
    const int index = ptx::opaque(place_.thread) + e * kThreads;
    Element out{index % kUnits, index / kUnits, 0, 0, false};
    out.unit = first_unit_ + out.local_unit;
    out.row = job.first_row + out.column;
    const auto& shape = task_.pass.shape;
    out.exists = out.column < kColumns && out.row < shape.batch && out.unit < shape.hidden;
    return out;
  }

  PRNN_DEVICE Spot spot(const Element& at) const {
    return {at.column, at.unit / kGranule * kGranule, at.local_unit % kGranule,
            at.column < kColumns && at.unit < static_cast<int>(task_.padded)};
  }

  // The row of a step in arrays by time. Of a plain call it is as far from the one before as from
  // the one after, and goes on from step to step; of others it is computed.
  class SequenceRow {
   public:
    SequenceRow() = default;
    PRNN_DEVICE SequenceRow(const Pass& pass, const Job& job, const Element& at) {
      if constexpr (kIsPlain<Pass>) {
        const auto of_any = pass.rows(job.group, job.first_step, 0);
        here_ = pass.rows(job.group, job.first_step, at.row).here;
        stride_ = of_any.next - of_any.here;
      }
    }
    // Of the step that is so many after s.
    PRNN_DEVICE SequenceRows rows(const Pass& pass, const Job& job, const Element& at, int s,
                                  int ahead) const {
      if constexpr (kIsPlain<Pass>)
        return {here_ + ahead * stride_, here_ + (ahead + 1) * stride_};
      else
        return pass.rows(job.group, s + ahead, at.row);
    }
    PRNN_DEVICE void go_on() { here_ += stride_; }

   private:
    int here_ = 0, stride_ = 0;
  };

  // Whether any lane of this warp has an e-th unit. Warps that have none would only be in the way.
  PRNN_DEVICE bool has_elements(int e) const {
    constexpr int kCount = kUnits * kColumns;
    return (e + 1) * kThreads <= kCount || place_.thread / 32 * 32 + e * kThreads < kCount;
  }
  static constexpr bool kHasIdleWarps = kUnits * kColumns <= kThreads - 32;
  // Those look for the next step's values no earlier than the others, who have just published.
  PRNN_DEVICE void pace_idle_warps() const {
    if constexpr (kHasIdleWarps && kExchange == Exchange::kGrid && !kIsStreamed) {
      if (has_elements(0))
        ptx::bar_arrive(1, kThreads);
      else
        ptx::bar_sync(1, kThreads);
    }
  }

  // What a thread has of its units between steps.
  struct State {
    Carry carry[kElements];
    Fetched fetched[kElements];
    Target target[kElements];
    SequenceRow row[kElements];
  };

  // Equal in all blocks of a team.
  PRNN_DEVICE Job job_of(int group, int first_row) const {
    const Pass& pass = task_.pass;
    if (kIsPlain<Pass> || pass.shape.lengths == nullptr)
      return {group, first_row, 0, static_cast<int>(pass.steps())};
    const int last_row = static_cast<int>(pass.shape.batch) - 1;
    std::int64_t longest = 0;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int row = first_row + n < last_row ? first_row + n : last_row;
      const std::int64_t length = pass.shape.length(row, group);
      longest = length > longest ? length : longest;
    }
    return {group, first_row, static_cast<int>(pass.first_step(longest)),
            static_cast<int>(pass.end_step(longest))};
  }

  PRNN_DEVICE void load(int group) {
    const int padded = static_cast<int>(task_.padded);
    if constexpr (kIsStreamed)
      weights_.load(task_.pass, padded, group, first_unit(0), task_.blocks * kUnits);
    else
      weights_.load(task_.pass, padded, group, first_unit_);
    each_panel([&] {
      for (int row = place_.thread; row < kTile.rows(); row += kThreads) {
        const int unit = first_unit_ + row / Pass::kProducts, product = row % Pass::kProducts;
        const bool exists = row < kUnits * Pass::kProducts && unit < task_.pass.shape.hidden;
        bias()[row] = exists ? to_float(task_.pass.bias(group, 0, unit, product)) : 0.0f;
      }
    });
  }
  PRNN_DEVICE float* bias() const { return kIsStreamed ? bias_ + panel_ * kTile.rows() : bias_; }

  // Calls f() for the block's panels, one after the other.
  template <class F>
  PRNN_DEVICE void each_panel(F&& f) {
    if constexpr (!kIsStreamed) {
      f();
    } else {
#pragma unroll 1
      for (panel_ = 0; panel_ < task_.panels.count; ++panel_) {
        first_unit_ = first_unit(panel_);
        if (first_unit_ >= static_cast<int>(task_.padded)) return;
        f();
      }
    }
  }
  // Where there are panels, what each carries from step to step lies in shared memory.
  PRNN_DEVICE Carry* carried(int e) const {
    return carries_ + (panel_ * kElements + e) * kThreads + place_.thread;
  }
  PRNN_DEVICE void take(State& state) const {
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      if constexpr (kIsStreamed) state.carry[e] = *carried(e);
  }
  PRNN_DEVICE void put(const State& state) const {
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      if constexpr (kIsStreamed) *carried(e) = state.carry[e];
  }

  template <class Probe>
  PRNN_DEVICE void run(const Job& job, Probe& probe) {
    State state;
    each_panel([&] {
      begin(job, state);
      put(state);
    });
    if (Pass::kStartsPublished) exchange_.leave(-1);
    probe.ended(Segment::kBefore);

#pragma unroll 1
    for (int s = job.first_step; s < job.end_step; ++s) {
      exchange_.arrive(s);
      each_panel([&] {
        take(state);
        step(job, s, state, probe);
        put(state);
      });
      pace_idle_warps();
      exchange_.leave(s);
      probe.ended(Segment::kCell);
    }
    each_panel([&] {
      take(state);
      end(job, state);
    });
  }

  PRNN_DEVICE void begin(const Job& job, State& state) {
    const Pass& pass = task_.pass;
    skip(job, 0, job.first_step);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const Element at = element(job, e);
      state.carry[e] = {};
      state.fetched[e] = {};
      state.target[e] = exchange_.target(spot(at));
      if (at.exists) {
        state.row[e] = SequenceRow(pass, job, at);
        state.carry[e] = pass.carried(job.group, 0, at.row, at.unit, Io{});
        if (!kIsStreamed && job.first_step < job.end_step)
          state.fetched[e] = pass.fetch(job.group, job.first_step, at.row, at.unit, Io{});
      }
      if constexpr (Pass::kStartsPublished)
        publish(job, at, -1, {}, {state.carry[e][0]}, state.target[e]);
    }
  }
  PRNN_DEVICE void end(const Job& job, const State& state) const {
    const Pass& pass = task_.pass;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const Element at = element(job, e);
      if (at.exists) pass.keep(job.group, job.end_step - 1, at.row, at.unit, state.carry[e], Io{});
    }
    skip(job, job.end_step, static_cast<int>(pass.steps()));
  }

  // Steps [from, to), none of which is one of the job's.
  PRNN_DEVICE void skip(const Job& job, int from, int to) const {
#pragma unroll 1
    for (int s = from; s < to; ++s)
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const Element at = element(job, e);
        if (at.exists) task_.pass.skip(job.group, s, at.row, at.unit, Io{});
      }
  }

  template <class Probe>
  PRNN_DEVICE void step(const Job& job, int s, State& state, Probe& probe) {
    const Pass& pass = task_.pass;
    auto& [carry, fetched, target, row] = state;
    Sums<kTile> sums = {};
    ptx::bar_warp_sync();  // mma wants the warp together
    probe.ended(Segment::kArrive);
    if constexpr (kIsStreamed) fetch(job, s, 0, state);
    if constexpr (kNormsRows<Pass>)
      if (has_elements(0)) norms_.early(s, row_place(job), pass.inputs(fetched[0], Io{}));
    if (Pass::kSources > 1 || job.reads(s)) {
      if constexpr (kIsStreamed)
        weights_.multiply(exchange_, s, panel_, sums);
      else
        weights_.multiply(exchange_, s, sums);
    }
    probe.ended(Segment::kProduct);
    Inputs inputs[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) inputs[e] = pass.inputs(fetched[e], Io{});
    // A step ahead, for these come from memory, which takes as long as a step; and after the look
    // at the team's values, which would wait for them.
    if (!kIsStreamed) fetch(job, s, 1, state);
    probe.ended(Segment::kFetch);
    sums_.write(s, place_, sums);
    ptx::bar_sync();  // every warp's partial sums are there
    probe.ended(Segment::kReduce);

#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (!has_elements(e)) continue;
      const Element at = element(job, e);
      Published published{};
      typename Pass::Saved saved;
      // A plain step looks at nothing that is not there: units that are not are cheaper than
      // branches around them.
      if constexpr (kNormsRows<Pass>) {
        const auto products =
            sums_.template read<Pass::kProducts>(s, at.column, at.local_unit, bias());
        published = norms_.advance(s, row_place(job), products, inputs[e], carry[e], saved);
      } else if (kIsPlain<Pass> || at.exists) {
        const int column = at.column < kColumns ? at.column : 0;
        const auto products =
            sums_.template read<Pass::kProducts>(s, column, at.local_unit, bias());
        published =
            pass.advance(job.group, s, at.row, at.unit, products, inputs[e], carry[e], saved, Io{});
      }
#pragma unroll
      for (int p = 0; p < Pass::kPublished; ++p) published[p] = at.exists ? published[p] : 0.0f;
      SequenceRows rows{};  // of rows that are not there, lengths are not either
      if (kIsPlain<Pass> || at.exists) rows = row[e].rows(pass, job, at, s, 0);
      // What others wait for comes first, where there are registers for what does not.
      const auto save = [&] {
        if (at.exists) pass.save(rows, job.group, s, at.row, at.unit, saved, Io{});
      };
      if (!kIsPlain<Pass>) save();
      if (Pass::kStartsPublished || s < pass.shape.time)
        publish(job, at, s, rows, published, target[e]);
      if (kIsPlain<Pass>) save();
      row[e].go_on();
    }
  }
  // Of the unit that this thread steps.
  PRNN_DEVICE auto row_place(const Job& job) const {
    const Element at = element(job, 0);
    return typename Norms::UnitPlace{at.column, at.unit, at.row, at.row < task_.pass.shape.batch,
                                     at.exists};
  }
  // What the step that is so many after s takes from memory.
  PRNN_DEVICE void fetch(const Job& job, int s, int ahead, State& state) const {
    const Pass& pass = task_.pass;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const Element at = element(job, e);
      if (at.exists && s + ahead < job.end_step)
        state.fetched[e] = pass.fetch(state.row[e].rows(pass, job, at, s, ahead), job.group,
                                      s + ahead, at.row, at.unit, Io{});
    }
  }

  // To the team, padding included, and to the pass's output. All lanes of a warp at once. What is
  // beyond the layer's units, or has no row, is zero; a grid publishes nothing of what has no row.
  PRNN_DEVICE void publish(const Job& job, const Element& at, int s, const SequenceRows& rows,
                           const Published& values, Target& target) const {
    Published exchanged = values;
    if (at.exists) exchanged = task_.pass.exchanged(job.group, s, at.row, at.unit, values, Io{});
    Granules<Pass> granules;
#pragma unroll
    for (int p = 0; p < Pass::kPublished; ++p)
      granules[p] = Format<kNumber>::granule(exchanged[p], place_.lane);
    exchange_.publish(s, spot(at), target, granules);
    const bool is_output = kExchange == Exchange::kGrid && task_.output_is_mailbox;
    if (s >= 0 && at.exists && !is_output)
      task_.pass.publish(rows, job.group, s, at.row, at.unit, values, Io{});
  }

  const Task<Pass>& task_;
  Place place_;
  WeightsType weights_;
  PartialSums<kTile> sums_;
  ExchangeType exchange_;
  Norms norms_;
  float* bias_;     // [panels][rows]
  int first_unit_;  // of the panel
  // Of a streamed tile.
  int panel_ = 0;
  Carry* carries_;  // [panels][elements][kThreads]
};

}  // namespace prnn

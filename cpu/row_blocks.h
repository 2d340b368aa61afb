// The rows of a part in a phase of a step, in blocks that are multiplied at once.
#pragma once
#include "cpu/fast_path.h"
#include "cpu/pack.h"
#include "cpu/steps.h"

namespace prnn::PRNN_ISA {

// As the loops over panels see them, which are compiled once for all passes.
class RowBlocks {
 public:
  const std::int64_t group, step, depth, units;  // of the phase

  // The next, of nearly equal size, or of whole tiles. Rows that have a product are in blocks by
  // themselves, so that a row that has ended costs next to nothing. False if there is none.
  virtual bool next(RowBlock& block) = 0;
  // How many rows that has at most.
  std::int64_t next_size() const { return are_alike_ ? size_ : most_; }
  // The steps of a block's rows; its first is row `first` of those that wait.
  virtual void take_steps(const Pending& pending, const RowBlock& block, int first) const = 0;

 protected:
  RowBlocks(const Blocking& blocking, std::int64_t group, std::int64_t step, const Part& part,
            std::int64_t depth, std::int64_t units)
      : group(group),
        step(step),
        depth(depth),
        units(units),
        most_(blocking.rows),
        of_tile_(blocking.products->rows_of_tile),
        row_(part.first_row),
        end_(part.last_row) {}
  ~RowBlocks() = default;
  // How many rows the next block has, of those that are left.
  PRNN_HD void size_next() {
    size_ = left_ > 0 ? ceil_div(left_, ceil_div(left_, most_)) : 0;
    if (of_tile_ > 0) size_ = min(left_, ceil_div(size_, of_tile_) * of_tile_);
  }

  const std::int64_t most_, of_tile_;
  std::int64_t row_, end_, left_ = 0, size_;
  bool are_alike_;
};

template <int kPhase, class Pass>
class RowBlocksOf final : public RowBlocks {
 public:
  PRNN_HD RowBlocksOf(const Pass& pass, const Blocking& blocking, std::int64_t group,
                      std::int64_t step, const Part& part)
      : RowBlocks(blocking, group, step, part, pass.depth(kPhase), pass.units(kPhase)),
        pass_(pass),
        products_(products_of(pass, *blocking.products)) {
    are_alike_ = rows_are_alike();
    all_multiply_ = are_alike_ && multiplies(row_);
    with_.count = without_.count = 0;
    with_.multiplies = true;
    without_.multiplies = without_.is_fast = false;
    if (are_alike_)
      left_ = end_ - row_;
    else
      for (std::int64_t b = row_; b < end_; ++b) left_ += multiplies(b);
    size_next();
  }

  bool next(RowBlock& block) override {
    if (are_alike_) {
      if (row_ == end_) return false;
      for (block.count = 0; block.count < size_;) block.rows[block.count++] = row_++;
      block.multiplies = all_multiply_;
      return give(block);
    }
    while (row_ < end_) {
      const std::int64_t b = row_++;
      RowBlock& of_kind = multiplies(b) ? with_ : without_;
      of_kind.rows[of_kind.count++] = b;
      if (with_.count > 0 && with_.count == size_) {
        block = with_;
        with_.count = 0;
        return give(block);
      }
      if (without_.count == most_) break;
    }
    block = without_;
    without_.count = 0;
    return block.count > 0;
  }
  void take_steps(const Pending& pending, const RowBlock& block, int first) const override {
    take_steps_of<kPhase>(pass_, pending, group, step, block, first);
  }

 private:
  // Whether all rows have a product in this step, or none.
  PRNN_HD bool rows_are_alike() const {
    if constexpr (requires { pass_.rows_are_alike(step); })
      return pass_.rows_are_alike(step);
    else
      return pass_.shape.lengths == nullptr;
  }
  PRNN_HD bool multiplies(std::int64_t row) const {
    return pass_.multiplies(group, kPhase, step, row);
  }
  PRNN_HD bool give(RowBlock& block) {
    block.products = &products_;
    block.is_fast = are_fast(pass_, group, step, block.rows, block.count);
    if (block.multiplies)
      for (int r = 0; r < block.count; ++r)
        block.inputs[r] = pass_.input(group, kPhase, step, block.rows[r]);
    left_ -= block.count;
    size_next();
    return true;
  }

  // Of what input() gives.
  PRNN_HD static const ProductsBySize& products_of(const Pass& pass, const Products& products) {
    if constexpr (requires { pass.at.keeps_bfloat16; })
      if (pass.at.keeps_bfloat16) return products.of_bfloat16;
    return products.of_floats;
  }

  const Pass& pass_;
  const ProductsBySize& products_;
  bool all_multiply_;
  RowBlock with_, without_;
};

}  // namespace prnn::PRNN_ISA

// The rows of a part in one step, in blocks that are multiplied at once.
#pragma once
#include "cpu/fast_path.h"
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

struct RowBlock {
  std::int64_t rows[kMaxRows];
  const float* inputs[kMaxRows];  // what they multiply
  int count;
  bool multiplies;   // or there is nothing to multiply, and products are zero
  bool is_prepared;  // what it multiplies: Products::prepare
  bool is_fast;      // as are_fast() says
};

// Gives them one after the other, of nearly equal size. Rows that have a product are in blocks by
// themselves, so that a row that has ended costs next to nothing.
template <class Pass>
class RowBlocks {
 public:
  PRNN_HD RowBlocks(const Pass& pass, const Blocking& blocking, int phase, std::int64_t group,
                    std::int64_t step, const Part& part)
      : pass_(pass),
        most_(blocking.rows),
        phase_(phase),
        group_(group),
        step_(step),
        row_(part.first_row),
        end_(part.last_row) {
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

  // How many rows the next has at most.
  PRNN_HD std::int64_t next_size() const { return are_alike_ ? size_ : most_; }
  // False if there is none.
  PRNN_HD bool next(RowBlock& block) {
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

 private:
  // Whether all rows have a product in this step, or none.
  PRNN_HD bool rows_are_alike() const {
    if constexpr (requires { pass_.rows_are_alike(step_); })
      return pass_.rows_are_alike(step_);
    else
      return pass_.shape.lengths == nullptr;
  }
  PRNN_HD bool multiplies(std::int64_t row) const {
    return pass_.multiplies(group_, phase_, step_, row);
  }
  // How many rows the next block has, of those that are left.
  PRNN_HD void size_next() { size_ = left_ > 0 ? ceil_div(left_, ceil_div(left_, most_)) : 0; }
  PRNN_HD bool give(RowBlock& block) {
    block.is_prepared = false;
    block.is_fast = are_fast(pass_, group_, step_, block.rows, block.count);
    if (block.multiplies)
      for (int r = 0; r < block.count; ++r)
        block.inputs[r] = pass_.input(group_, phase_, step_, block.rows[r]);
    left_ -= block.count;
    size_next();
    return true;
  }

  const Pass& pass_;
  const std::int64_t most_;
  const int phase_;
  const std::int64_t group_, step_;
  std::int64_t row_, end_, left_ = 0, size_;
  bool are_alike_, all_multiply_;
  RowBlock with_, without_;
};

}  // namespace prnn::PRNN_ISA

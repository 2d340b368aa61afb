#include "cpu/matrix_product.h"

#include <algorithm>
#include <bit>

#include "cpu/plan/machine.h"

namespace prnn {
namespace {

// Sums are taken so many terms at a time, whatever the blocking: panels of so many slices stay in
// the second-level cache, and so many terms of a block's rows in the first.
constexpr std::int64_t kDepth = kMostTerms;
constexpr std::int64_t kPadding = 16;  // after transposed rows, which are stored in whole vectors
constexpr std::int64_t kAlignment = 16, kPanelColumns = 64;  // four of the widest vectors

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t bytes_of(const MatrixProduct& product) {
  return product.dtype == Dtype::kFloat32 ? 4 : 2;
}
std::int64_t words(const MatrixProduct& product, std::int64_t elements) {
  return ceil_div(elements * bytes_of(product), 4);
}
// The n-th element of a matrix.
const void* element(const MatrixProduct& product, const void* matrix, std::int64_t n) {
  return static_cast<const char*>(matrix) + n * bytes_of(product);
}

std::int64_t panels_of(const MatrixProduct& product) {
  return ceil_div(product.columns, kPanelColumns);
}

// Rows are multiplied by several panels at a time, as many as fill half of the cache: of rows that
// come from a third-level cache, and go to pages which the processor has to look up, that takes a
// tenth less than one panel at a time.
constexpr std::int64_t kMostPanels = 8;
std::int64_t panels_at_once(const Isa& isa, const MatrixProduct& product) {
  const std::int64_t panel_bytes = bytes_of(product) * kDepth * kPanelColumns;
  const std::int64_t fit = this_machine(isa.width).cache_bytes / 2 / panel_bytes;
  return std::clamp<std::int64_t>(fit, 1, kMostPanels);
}

// There may be a thread for each panel, up to so many: larger workspaces cost more in page faults
// than the threads gain.
constexpr std::int64_t kMostMembers = 16;
std::int64_t most_threads(const MatrixProduct& product) {
  return std::min(kMostMembers, panels_of(product));
}
// Panels that all threads have room for, whatever their number: each for its part, or for the most
// at once.
std::int64_t most_panels(const MatrixProduct& product) {
  return std::min(panels_of(product) + most_threads(product) - 1, kMostMembers * kMostPanels);
}
// And each of so many.
std::int64_t panels_each(const MatrixProduct& product, std::int64_t threads) {
  return std::min(ceil_div(panels_of(product), threads), kMostPanels);
}

// A thread's part of a call of at least so many multiply-adds is worth its barriers. An estimate:
// half a microsecond of arithmetic, not the result of a measurement.
constexpr double kWorthSharing = 30e3;

std::int64_t depth_at_once(const MatrixProduct& product) { return std::min(product.depth, kDepth); }

// Words from row to row of what is transposed.
std::int64_t transposed_stride(const MatrixProduct& product) {
  return ceil_div(words(product, depth_at_once(product)), kPadding) * kPadding + kPadding;
}

// A panel of columns, after a slice that its sums start from.
std::int64_t panel_floats(const MatrixProduct& product) {
  return (1 + words(product, depth_at_once(product))) * kPanelColumns;
}

// What is transposed, and a row of ones.
std::int64_t transposed_floats(const MatrixProduct& product) {
  return product.over_rows ? (product.rows + 1) * transposed_stride(product) : 0;
}

double multiply_adds(const MatrixProduct& product) {
  return static_cast<double>(product.groups * product.rows) *
         static_cast<double>(product.columns * product.depth);
}

// One product. Its depth is cut into blocks, and the rest into parts. Of a block there are stages:
// one to transpose it where it has to be, then as many as give each thread a part in each of them,
// for a thread may come late.
class Cut {
 public:
  Cut(const Isa& isa, const MatrixProduct& product, std::int64_t threads)
      : isa_(isa),
        functions_(product.dtype == Dtype::kFloat32 ? isa.float32_matrices : isa.bfloat16_matrices),
        product_(product),
        threads_(threads),
        vectors_(ceil_div(product.columns, isa.width)) {
    if (vectors_ >= 2 * threads) {
      const std::int64_t at_once = panels_at_once(isa, product) * kPanelColumns / isa.width;
      column_parts_ = std::min(vectors_, ceil_div(vectors_, at_once * threads) * threads);
    } else {
      column_parts_ = panels_of(product);
      row_parts_ = std::min(ceil_div(threads, column_parts_), product.rows);
    }
  }

  std::int64_t stages() const { return product_.groups * blocks() * stages_of_block(); }

  void take_stage(std::int64_t stage, std::int64_t thread, std::int64_t threads, float* transposed,
                  float* panels) const {
    const std::int64_t block = stage / stages_of_block(),
                       stage_of_block = stage % stages_of_block();
    const std::int64_t group = block / blocks(), first = block % blocks() * kDepth;
    const std::int64_t depth = std::min(kDepth, product_.depth - first);
    if (stage_of_block < transpositions())
      return transpose(group, first, depth, thread, threads, transposed);
    const std::int64_t begin = (stage_of_block - transpositions()) * threads_;
    const std::int64_t count = std::min(threads_, parts() - begin);
    for (std::int64_t n = count * thread / threads; n < count * (thread + 1) / threads; ++n) {
      const std::int64_t part = begin + n;
      multiply(group, first, depth, part / row_parts_, part % row_parts_, transposed, panels);
    }
  }

 private:
  std::int64_t blocks() const { return ceil_div(product_.depth, kDepth); }
  std::int64_t parts() const { return column_parts_ * row_parts_; }
  std::int64_t transpositions() const { return product_.over_rows ? 1 : 0; }
  std::int64_t stages_of_block() const { return transpositions() + ceil_div(parts(), threads_); }

  void transpose(std::int64_t group, std::int64_t first, std::int64_t depth, std::int64_t thread,
                 std::int64_t threads, float* transposed) const {
    const std::int64_t stride = product_.groups * product_.rows;
    const std::int64_t to_stride = transposed_stride(product_);
    const std::int64_t per_word = 4 / bytes_of(product_);
    const std::int64_t pieces = ceil_div(product_.rows, isa_.width);
    const std::int64_t row = pieces * thread / threads * isa_.width;
    const std::int64_t end = std::min(product_.rows, pieces * (thread + 1) / threads * isa_.width);
    functions_.transpose(
        element(product_, product_.a, first * stride + group * product_.rows + row), stride, depth,
        end - row, transposed + row * to_stride, per_word * to_stride);
    // 1.0f, and two of bfloat16.
    const std::uint32_t ones = product_.dtype == Dtype::kFloat32 ? 0x3f800000 : 0x3f803f80;
    if (thread == 0)
      std::fill_n(transposed + product_.rows * to_stride, words(product_, depth),
                  std::bit_cast<float>(ones));
  }

  void multiply(std::int64_t group, std::int64_t first, std::int64_t depth,
                std::int64_t column_part, std::int64_t row_part, const float* transposed,
                float* panels) const {
    const MatrixProduct& p = product_;
    const std::int64_t column = vectors_ * column_part / column_parts_ * isa_.width;
    const std::int64_t column_end =
        std::min(p.columns, vectors_ * (column_part + 1) / column_parts_ * isa_.width);
    const std::int64_t row = p.rows * row_part / row_parts_;
    const std::int64_t row_end = p.rows * (row_part + 1) / row_parts_;
    MatrixBlock block{};
    block.depth = depth;
    block.columns = column_end - column;
    block.rows = row_end - row;
    block.adds = first > 0;
    block.panels = panels;
    if (p.over_rows) {
      const std::int64_t stride = transposed_stride(p);
      block.stride_a = 4 / bytes_of(p) * stride;
      block.a = transposed + row * stride;
      block.stride_b = p.groups * p.columns;
      block.b = element(p, p.b, first * block.stride_b + group * p.columns + column);
      block.stride_c = p.columns;
      block.c = p.c + (group * p.rows + row) * p.columns + column;
      if (row_part + 1 == row_parts_) {
        block.ones = transposed + p.rows * stride;
        block.sums = p.sums + group * p.columns + column;
      }
    } else {
      block.stride_a = p.groups * p.depth;
      block.a = element(p, p.a, row * block.stride_a + group * p.depth + first);
      block.is_b_along_depth = true;
      block.stride_b = p.groups * p.depth;
      block.b = element(p, p.b, column * block.stride_b + group * p.depth + first);
      block.stride_c = p.groups * p.columns;
      block.c = p.c + row * block.stride_c + group * p.columns + column;
    }
    functions_.multiply(block);
  }

  const Isa& isa_;
  const MatrixFunctions& functions_;
  const MatrixProduct& product_;
  std::int64_t threads_, vectors_, column_parts_, row_parts_ = 1;
};

// The most that any of the products takes.
template <class F>
std::int64_t most(const MatrixProduct* products, int count, F floats) {
  std::int64_t out = 0;
  for (int n = 0; n < count; ++n) out = std::max(out, floats(products[n]));
  return out;
}

float* aligned(float* p) {
  constexpr auto kBytes = static_cast<std::intptr_t>(kAlignment * sizeof(float));
  return reinterpret_cast<float*>(ceil_div(reinterpret_cast<std::intptr_t>(p), kBytes) * kBytes);
}

}  // namespace

std::int64_t workspace_floats(const MatrixProduct* products, int count) {
  return kAlignment + most(products, count, most_panels) * most(products, count, panel_floats) +
         most(products, count, transposed_floats);
}

void run(const Isa& isa, const MatrixProduct* products, int count, ThreadPool& pool,
         float* workspace) {
  double work = 0;
  for (int n = 0; n < count; ++n) work += multiply_adds(products[n]);
  const std::int64_t useful = most(products, count, most_threads);
  const int available = static_cast<int>(std::min<std::int64_t>(pool.threads(), useful));
  const int threads = work / available >= kWorthSharing ? available : 1;
  std::int64_t stages = 0;
  for (int n = 0; n < count; ++n) stages += Cut(isa, products[n], threads).stages();
  const std::int64_t each =
      most(products, count,
           [&](const MatrixProduct& product) { return panels_each(product, threads); }) *
      most(products, count, panel_floats);
  float* const panels = aligned(workspace);
  float* const transposed = panels + threads * each;
  const auto take_stage = [&](std::int64_t stage, std::int64_t thread, std::int64_t present) {
    for (int n = 0; n < count; ++n) {
      const Cut cut(isa, products[n], threads);
      if (stage < cut.stages())
        return cut.take_stage(stage, thread, present, transposed, panels + thread * each);
      stage -= cut.stages();
    }
  };
  if (stages > 1) return parallel_steps(pool, threads, stages, take_stage);
  // There is no barrier before the one stage: a thread that comes late finds its share still there.
  parallel_for(pool, threads, threads,
               [&](std::int64_t thread) { take_stage(0, thread, threads); });
}

}  // namespace prnn

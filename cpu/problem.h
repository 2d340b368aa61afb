// A native call on the CPU, and how its work is cut.
#pragma once
#include "core/arrays.h"
#include "core/dtype.h"

namespace prnn {

enum class Kind { kForward, kBackward, kProjection };

// What packed weights are.
enum class WeightFormat : std::int64_t {
  kAsGiven,  // as in the arrays, or widened
  kInt8,     // 8-bit integers with a scale for each column (cpu/int8.h): prepacked ones only
};

// Of the input projection (cpu/projection.h).
template <class T = float>
struct ProjectionArrays {
  std::int64_t input_size;
  const T *x, *w, *b;  // sequence [input], for all groups; [input, groups, G·H]; [groups, G·H]
  float* a;            // [batch, steps, groups, G·H]
  // Where T is not float, x as multiplied: [batch, steps, groups, row_floats].
  float* rows;
  std::int64_t row_floats;
  bool keeps_bfloat16;  // so multiplied: Products::of_bfloat16
  std::int64_t steps;   // that are made at a time, a power of 2
};

struct Problem {
  Kind kind;
  Dtype dtype;
  CellSpec cell;
  Shape shape;
  ForwardArrays<void> forward;  // one of the three, by kind
  BackwardArrays<void> backward;
  // Of a forward pass, if its input_size is not 0: what a_x is made of.
  ProjectionArrays<void> projection;
  const void* prepacked;  // of a forward pass that projects: its weights, packed; or null
  std::int64_t prepacked_words;
  WeightFormat weights;
};

inline constexpr int kMaxPhases = 2, kMaxRows = 32, kMaxVectors = 8;

// Panels side by side that are packed together: some slices of each in turn, so that a row of the
// matrix, which is a page or more of memory, is read in longer pieces. LSTM 1024 is packed so in a
// half of the time.
inline constexpr int kPackedTogether = 8;

// The most values of rows that wait, as integers, for 8-bit weights: a thread has them on its
// stack. So deep a product may be.
inline constexpr std::int64_t kMostQuantised = 16384;

// Rows that are multiplied at once by weights that are not packed.
inline constexpr int kUnpackedRows = 4;

// Rows of bfloat16 that products read as they are end in zeros, at a multiple of so many numbers.
inline constexpr std::int64_t kBfloat16Padding = 32;

// Multiplies some rows, `depth` floats each, by a micropanel of packed weights (cpu/product.h).
using Product = void (*)(const float* micropanel, const float* const* rows, std::int64_t depth,
                         float* out, std::int64_t out_stride);
// By the number of rows and of vectors; null where there would be too few registers.
using ProductsBySize = Product[kMaxRows + 1][kMaxVectors + 1];

// How an instruction set multiplies packed weights of one format.
struct Products {
  ProductsBySize of_floats;    // rows of float
  ProductsBySize of_prepared;  // rows as prepare() puts them
  ProductsBySize of_bfloat16;  // rows of bfloat16, with zeros up to kBfloat16Padding; or null
  // Puts at `place`, where there is room for so many floats, what products multiply in place of a
  // block's rows. Gives how many that took; 0: the rows stay what they are, for want of room.
  std::int64_t (*prepare)(const float** rows, int count, std::int64_t depth, float* place,
                          std::int64_t room);  // null: all rows stay
  // Of a panel's vectors, those that are multiplied at once where a part has so many rows; and how
  // many rows are, by so many vectors.
  int (*vectors_at_once)(int vectors, std::int64_t rows);
  int (*rows_at_once)(int vectors);
  // What a thread does before it multiplies so many rows of the batch, and after (cpu/product.h,
  // Turn). Null: nothing.
  void (*begin_turn)(std::int64_t rows), (*end_turn)();
  bool are_of_bfloat16;  // by instructions for it, which have a rate of their own
  int rows_of_tile;      // that take as long as one; 0: each row takes as long as another
};

// Where a product's weights come from.
enum class WeightSource {
  kPacked,          // all of them, before the first step
  kPrepacked,       // packed before the call (cpu/prepacked.h)
  kPackedPerPanel,  // a panel when its turn comes, each time
  kUnpacked,        // as they lie in memory; panels are of one vector
};

// How a step's work is divided among threads.
enum class Partition {
  kBatch,    // each takes rows of the batch (or groups) through all steps
  kHidden,   // each takes some of the units in every step; a barrier after every phase
  kColumns,  // the same, but for products: of those each takes columns, in a task of its own
};

// What panels are cut for: so many rows of the batch that a thread works on at a time, and so many
// threads that share the units of a step.
struct Layout {
  std::int64_t rows, threads;
  bool operator==(const Layout&) const = default;
};

// The packed weights of each phase are cut into panels of nearly equal size.
struct Blocking {
  Layout layout;
  int rows;                            // of the batch, multiplied at once
  int vectors[kMaxPhases];             // SIMD vectors of units in the widest panel
  int micropanel_vectors[kMaxPhases];  // of a panel's vectors of products, a micropanel
  std::int64_t panels[kMaxPhases];     // per group
  // Words of 4 bytes: of a vector of units, of all of a group's phase, of all of a group.
  std::int64_t vector_words[kMaxPhases], phase_words[kMaxPhases], group_words;
  std::int64_t panel_words;  // of the largest panel
  int phases, weights_per_word;
  int head_slices;  // of a micropanel, before those of weights
  WeightFormat weights;
  const Products* products;
  WeightSource source;
  Partition partition;
  std::int64_t units[kMaxPhases];    // that the phase makes
  std::int64_t columns[kMaxPhases];  // vectors of products per group
  std::int64_t panel_buffers;  // kPackedPerPanel: for a panel at a time, of so many threads at most
};

// Slices of a micropanel whose products run over so many weights.
inline std::int64_t slices(const Blocking& blocking, std::int64_t depth) {
  const std::int64_t per_slice = blocking.weights_per_word;
  return blocking.head_slices + (depth + per_slice - 1) / per_slice;
}

// Some of the work of one step: what one thread does.
struct Part {
  std::int64_t first_group, last_group, first_row, last_row;
  std::int64_t first_panel, last_panel;  // of the phase
};

// Some rows and columns of a product of matrices (cpu/matrix_product.h):
//   c[m][n] = Σ_k a[m][k] b[k][n], or += that, for `depth` terms, kMostTerms of them at most
struct MatrixBlock {
  std::int64_t rows, columns, depth;
  const void *a, *b;  // a: [m][k]; b: [k][n], or [n][k] if it is along the depth
  float* c;
  std::int64_t stride_a, stride_b, stride_c;
  bool is_b_along_depth, adds;
  float* panels;               // a place for the columns, packed: words, 1 + depth of each
  const void* ones = nullptr;  // `depth` of them, where Σ_k b[k][n] is asked for
  float* sums = nullptr;
};
// A sum is taken so many terms at a time on every machine: its bits depend on it.
inline constexpr std::int64_t kMostTerms = 512;

// For matrices of one type.
struct MatrixFunctions {
  // to[m][k] = from[k][m], `rows` of `depth`; writes whole vectors of `to`, zeros past the depth.
  void (*transpose)(const void* from, std::int64_t stride, std::int64_t depth, std::int64_t rows,
                    void* to, std::int64_t to_stride);
  void (*multiply)(const MatrixBlock&);
};

struct ElementwiseRecurrence;  // cpu/elementwise.h

// The engine as compiled for one instruction set.
struct Isa {
  const char* name;
  int width;
  const Products *float32, *bfloat16, *float16, *int8;  // by what the packed weights are
  // Whether it sums products of bfloat16 in another order where the weights are packed than where
  // they are not: by pairs.
  bool sums_pairs;
  // The blocking of panels that are cut as the layout says, for these products.
  Blocking (*cut)(const Problem&, const Products&, Layout);
  // Packs the part's panels of a phase, of its groups.
  void (*pack)(const Problem&, const Blocking&, const Part&, int phase, float* packed);
  // What rows [first, last) multiply first, where they read it from a place of its own.
  void (*begin)(const Problem&, std::int64_t first, std::int64_t last);
  // Of a projection in a 16-bit format, what the part's groups and rows multiply in a chunk.
  void (*widen)(const Problem&, const Part&, std::int64_t chunk);
  // One phase of one step.
  void (*advance)(const Problem&, const Blocking&, float* packed, const Part&, std::int64_t step,
                  int phase);
  // The products of a phase by columns: of the part's panels, counted over all products.
  void (*multiply_columns)(const Problem&, const Blocking&, float* packed, const Part&,
                           std::int64_t step, int phase);
  // Steps [first, end) of the part's groups and rows, whatever panels it names.
  void (*advance_rows)(const Problem&, const Blocking&, float* packed, Part, std::int64_t first,
                       std::int64_t end);
  MatrixFunctions float32_matrices, bfloat16_matrices;
  // All steps of elements [first, end) of a row, of which there is room for some thousands.
  void (*recur)(const ElementwiseRecurrence&, std::int64_t row, std::int64_t first,
                std::int64_t end);
  // out[n] = sigmoid(in[n]), and so on: lets the tests measure their error.
  using Map = void (*)(const float* in, float* out, std::int64_t n);
  Map sigmoid, tanh, log_sigmoid, exp;

  const Products& products(const Problem& problem) const {
    if (problem.weights == WeightFormat::kInt8) return *int8;
    return problem.dtype == Dtype::kBfloat16  ? *bfloat16
           : problem.dtype == Dtype::kFloat16 ? *float16
                                              : *float32;
  }
  Blocking block(const Problem& problem, Layout layout) const {
    return cut(problem, products(problem), layout);
  }
};

}  // namespace prnn

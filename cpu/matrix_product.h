// Products of matrices that are parallel in time: the gradients of a layer's weights and of its
// input, from those of its pre-activations. Of float or bfloat16, with sums of float, each matrix
// [rows, groups, columns], the groups independent of each other:
//   over rows      c[g][m][n] = Σ_r a[r][g][m] b[r][g][n],  and sums[g][n] = Σ_r b[r][g][n]
//   over columns   c[r][g][n] = Σ_k a[r][g][k] b[n][g][k]
//
// They are for sizes at which a library's threads would meet more than they multiply. Results do
// not depend on the number of threads.
#pragma once
#include <cstdint>

#include "cpu/problem.h"
#include "cpu/threads.h"

namespace prnn {

struct MatrixProduct {
  Dtype dtype;  // of a and b
  bool over_rows;
  std::int64_t groups;
  std::int64_t rows, columns;  // of c, in a group: m or r, and n
  std::int64_t depth;          // of the sums: r or k
  const void *a, *b;
  float *c, *sums;  // sums: only over rows
};

// For all of them, one after the other.
std::int64_t workspace_floats(const MatrixProduct* products, int count);

// `workspace` has workspace_floats(products, count) floats.
void run(const Isa& isa, const MatrixProduct* products, int count, ThreadPool& pool,
         float* workspace);

}  // namespace prnn

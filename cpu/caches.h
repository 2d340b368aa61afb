// How large the caches are that plans are made for, in bytes.
#pragma once
#include <cstdint>

namespace prnn {

// The cache that a thread has for itself: the second-level one, on every processor we know. The
// environment variable PRNN_CPU_CACHE_BYTES overrides what the system says.
std::int64_t cache_bytes_per_thread();

// The cache that cores share, the third-level one; 0: none. PRNN_CPU_SHARED_CACHE_BYTES overrides.
std::int64_t shared_cache_bytes();

}  // namespace prnn

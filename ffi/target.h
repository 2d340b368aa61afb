// A handler as jax.ffi.register_ffi_target takes it.
#pragma once
#include <nanobind/nanobind.h>

namespace prnn {

template <class Handler>
nanobind::capsule target(Handler* handler) {
  return nanobind::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

}  // namespace prnn

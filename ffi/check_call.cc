// What each module registers as the first stage of its calls.
#include "ffi/attributes.h"
#include "ffi/handlers.h"

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCheckCall, prnn::check_attributes,
                              xla::ffi::Ffi::BindInstantiate().Attr<prnn::CallAttributes>("call"));

# What a GPU is asked without JAX (benchmarks/gpu_campaign.sh), with the kernels of the module:
# PRNN_CUDA_PROGRAMS=ON, into programs/ of the build folder.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/programs)

# Number formats and cases are those of the tests, which have them from the emulator.
file(GLOB _emulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/emulator/*.cc)
add_library(prnn_program_parts OBJECT cuda/devices.cc cuda/planner.cc cuda/launch.cc
            cuda/watchdog.cc ${_emulator})
foreach(_program tests/native/check_device.cc benchmarks/gpu/plans.cc benchmarks/gpu/segments.cc)
  cmake_path(GET _program STEM _name)
  add_executable(${_name} ${_program} $<TARGET_OBJECTS:prnn_program_parts> ${_cuda_objects})
  list(APPEND _programs ${_name})
endforeach()
target_sources(segments PRIVATE benchmarks/gpu/segments.cu)
foreach(_name prnn_program_parts ${_programs})
  target_include_directories(${_name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(${_name} PRIVATE -Wno-unknown-pragmas)
  target_link_libraries(${_name} PRIVATE CUDA::cudart_static Threads::Threads)
endforeach()
add_executable(conformance benchmarks/gpu/conformance.cu tests/emulator/matrix.cc)
target_include_directories(conformance PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(conformance PRIVATE PRNN_EMULATOR_MATRIX)
add_executable(micro benchmarks/gpu/micro.cu)

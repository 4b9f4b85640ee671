# LibTorch from the PyPI wheel as an imported target of our own. find_package(Torch) on that wheel demands a CUDA toolkit even for a
# CPU-only link, and drags in every CUDA library at start-up; linking libtorch_cpu and libc10 alone needs neither.
file(GLOB _torch_candidates "${CMAKE_SOURCE_DIR}/.env/build/lib/python3*/site-packages/torch")
if(_torch_candidates)
  list(GET _torch_candidates 0 _torch_default)
endif()
set(RINGSIDE_TORCH_DIR "${_torch_default}" CACHE PATH "the torch folder of an installed PyTorch wheel")
if(NOT EXISTS "${RINGSIDE_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found at '${RINGSIDE_TORCH_DIR}'. Run tools/setup.sh, or set RINGSIDE_TORCH_DIR.")
endif()
file(READ "${RINGSIDE_TORCH_DIR}/version.py" _torch_version)
if(NOT _torch_version MATCHES "2\\.11\\.0")
  message(FATAL_ERROR "expected torch 2.11.0 in ${RINGSIDE_TORCH_DIR}; Gloo's class layout is checked for that version only")
endif()

add_library(ringside_torch INTERFACE)
target_include_directories(ringside_torch SYSTEM INTERFACE
  "${RINGSIDE_TORCH_DIR}/include" "${RINGSIDE_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(ringside_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(ringside_torch INTERFACE
  "${RINGSIDE_TORCH_DIR}/lib/libtorch_cpu.so" "${RINGSIDE_TORCH_DIR}/lib/libc10.so")

# One precompiled header for every target that sees torch: ATen and autograd cost seconds a file otherwise.
add_library(ringside_torch_pch STATIC "${CMAKE_SOURCE_DIR}/tools/cmake/torch_pch.cpp")
target_link_libraries(ringside_torch_pch PUBLIC ringside_torch)
target_include_directories(ringside_torch_pch PRIVATE "${CMAKE_SOURCE_DIR}")
target_precompile_headers(ringside_torch_pch PRIVATE
  <ATen/ATen.h> <torch/csrc/autograd/custom_function.h> <algorithm> <map> <memory> <optional> <span> <string> <vector>)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set_target_properties(ringside_torch_pch PROPERTIES
    CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/tools/cmake/fresh_output.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

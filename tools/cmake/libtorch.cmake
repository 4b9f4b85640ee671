# LibTorch from the PyPI wheel as an imported target of our own. find_package(Torch) on that wheel demands a CUDA toolkit even for a
# CPU-only link, and drags in every CUDA library at start-up; linking libtorch_cpu and libc10 alone needs neither.
file(GLOB _torch_candidates "${CMAKE_SOURCE_DIR}/.env/build/lib/python3*/site-packages/torch")
if(_torch_candidates)
  list(GET _torch_candidates 0 _torch_default)
endif()
set(RINGSIDE_TORCH_DIR "${_torch_default}" CACHE PATH "the torch folder of an installed PyTorch wheel")

# ringside_check_torch(folder): stops unless it holds the version of LibTorch that the sources are written for.
function(ringside_check_torch folder)
  if(NOT EXISTS "${folder}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "LibTorch not found at '${folder}'. Run tools/setup.sh, or set RINGSIDE_TORCH_DIR.")
  endif()
  file(READ "${folder}/version.py" version)
  if(NOT version MATCHES "2\\.11\\.0")
    message(FATAL_ERROR "expected torch 2.11.0 in ${folder}; Gloo's class layout is checked for that version only")
  endif()
endfunction()
ringside_check_torch("${RINGSIDE_TORCH_DIR}")

# What an executable links decides itself, by its property RINGSIDE_CUDA: libtorch_cpu alone, or the whole wheel
# (ringside_torch_full, tools/cmake/cuda.cmake). The libraries in between are the same objects for both.
add_library(ringside_torch_cpu INTERFACE)
target_link_libraries(ringside_torch_cpu INTERFACE
  "${RINGSIDE_TORCH_DIR}/lib/libtorch_cpu.so" "${RINGSIDE_TORCH_DIR}/lib/libc10.so")
define_property(TARGET PROPERTY RINGSIDE_CUDA BRIEF_DOCS "this executable links the whole torch wheel")

add_library(ringside_torch INTERFACE)
target_include_directories(ringside_torch SYSTEM INTERFACE
  "${RINGSIDE_TORCH_DIR}/include" "${RINGSIDE_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(ringside_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# at::parallel_for is a template of LibTorch's headers: without OpenMP it runs on one thread, and says nothing. The run-time
# library is the one that LibTorch itself uses.
target_compile_options(ringside_torch INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fopenmp>)
target_link_libraries(ringside_torch INTERFACE "${RINGSIDE_TORCH_DIR}/lib/libgomp.so.1"
  $<IF:$<BOOL:$<TARGET_PROPERTY:RINGSIDE_CUDA>>,ringside_torch_full,ringside_torch_cpu>)

# One precompiled header for every target that sees torch: ATen costs seconds a file otherwise. Autograd is not in it: twenty
# files use it, and it would add a second to each of the others.
add_library(ringside_torch_pch STATIC "${CMAKE_SOURCE_DIR}/tools/cmake/torch_pch.cpp")
target_link_libraries(ringside_torch_pch PUBLIC ringside_torch)
target_include_directories(ringside_torch_pch PRIVATE "${CMAKE_SOURCE_DIR}")
target_precompile_headers(ringside_torch_pch PRIVATE
  <ATen/ATen.h> <algorithm> <map> <memory> <optional> <span> <string> <vector>)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set_target_properties(ringside_torch_pch PROPERTIES
    CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/tools/cmake/fresh_output.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

# The CUDA part of sp/: what it needs of a plan, built and tested everywhere; the kernels and NCCL as a library of its own,
# ringside_sp_cuda, and what it links. The latter is compiled wherever nvcc and a full torch wheel are found, so that a
# machine without a GPU still compiles and links it; only the `cuda` preset demands it.
ringside_library(NAME sp_varlen_groups SOURCES "${CMAKE_SOURCE_DIR}/sp/attention/cuda/varlen_groups.cpp" DEPS sp_plan)
ringside_library(NAME sp_ring_step SOURCES "${CMAKE_SOURCE_DIR}/sp/attention/cuda/ring_step.cpp"
  DEPS sp_varlen_groups sp_attention TORCH)

include(CheckLanguage)
check_language(CUDA)
# .env/build holds libtorch_cuda.so too, but not the CUDA libraries that it needs.
set(_full_torch_candidates)
foreach(_env cuda oracle)
  file(GLOB _found "${CMAKE_SOURCE_DIR}/.env/${_env}/lib/python3*/site-packages/torch/lib/libtorch_cuda.so")
  list(APPEND _full_torch_candidates ${_found})
endforeach()
# One wheel for all: a torch that was named comes before those found.
if(RINGSIDE_CUDA AND NOT RINGSIDE_TORCH_DIR MATCHES "/\\.env/build/" AND EXISTS "${RINGSIDE_TORCH_DIR}/lib/libtorch_cuda.so")
  list(PREPEND _full_torch_candidates "${RINGSIDE_TORCH_DIR}/lib/libtorch_cuda.so")
endif()
set(RINGSIDE_HAVE_CUDA OFF)
if(NOT CMAKE_CUDA_COMPILER)
  set(_cuda_missing "nvcc not found")
elseif(NOT _full_torch_candidates)
  set(_cuda_missing "no torch wheel with CUDA libraries (tools/setup.sh --oracle or --cuda installs one)")
else()
  set(RINGSIDE_HAVE_CUDA ON)
endif()
if(NOT RINGSIDE_HAVE_CUDA)
  if(RINGSIDE_CUDA)
    message(FATAL_ERROR "the CUDA build was asked for, but: ${_cuda_missing}")
  endif()
  message(STATUS "CUDA and NCCL objects: skipped, ${_cuda_missing}")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
list(GET _full_torch_candidates 0 _torch_cuda)
get_filename_component(_torch_lib "${_torch_cuda}" DIRECTORY)
get_filename_component(_site_packages "${_torch_lib}/../.." ABSOLUTE)
message(STATUS "CUDA and NCCL objects: built with nvcc ${CMAKE_CUDA_COMPILER_VERSION}, linked to ${_torch_cuda}")

# NCCL as the wheel pins it; the system's where the wheel carries none.
find_path(RINGSIDE_NCCL_INCLUDE nccl.h PATHS "${_site_packages}/nvidia/nccl/include" NO_DEFAULT_PATH)
find_path(RINGSIDE_NCCL_INCLUDE nccl.h REQUIRED)

add_library(ringside_torch_cuda INTERFACE)
target_include_directories(ringside_torch_cuda SYSTEM INTERFACE "${RINGSIDE_NCCL_INCLUDE}")
target_compile_definitions(ringside_torch_cuda INTERFACE USE_C10D_NCCL)
# --no-as-needed: CUDA registers itself when its library is loaded, no symbol of it need be named.
target_link_libraries(ringside_torch_cuda INTERFACE ringside_torch CUDA::cudart
  -Wl,--no-as-needed "${_torch_cuda}" "${_torch_lib}/libc10_cuda.so" -Wl,--as-needed)

add_library(ringside_sp_cuda STATIC
  "${CMAKE_SOURCE_DIR}/sp/attention/cuda/row_kernels.cu" "${CMAKE_SOURCE_DIR}/sp/attention/cuda/kernels.cpp"
  "${CMAKE_SOURCE_DIR}/sp/mesh/nccl_communicator.cpp")
target_include_directories(ringside_sp_cuda PUBLIC "${CMAKE_SOURCE_DIR}")
target_link_libraries(ringside_sp_cuda PUBLIC sp_ring_step sp_mesh ringside_torch_cuda)
add_subdirectory("${CMAKE_SOURCE_DIR}/tools/bench/gpu" "${CMAKE_BINARY_DIR}/tools/bench/gpu" EXCLUDE_FROM_ALL)

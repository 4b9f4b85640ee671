# The CUDA part: what of sp/ needs only a plan, built and tested everywhere; and where nvcc and a whole torch wheel are found,
# the kernels, NCCL and the CUDA backend as libraries of their own, which the executables with property RINGSIDE_CUDA link
# beside the objects that all others link. A machine without a GPU compiles and links them too. RINGSIDE_CUDA demands them.
ringside_library(NAME sp_varlen_groups SOURCES "${CMAKE_SOURCE_DIR}/sp/attention/cuda/varlen_groups.cpp" DEPS sp_plan)
ringside_library(NAME sp_ring_step SOURCES "${CMAKE_SOURCE_DIR}/sp/attention/cuda/ring_step.cpp"
    "${CMAKE_SOURCE_DIR}/sp/attention/cuda/exact_attention.cpp"
  DEPS sp_varlen_groups sp_attention TORCH)

# ringside_find_full_torch(OUT): the torch folder of an installed wheel that has its CUDA libraries beside it, or empty. That
# of .env/build has libtorch_cuda.so, but nothing that it needs.
function(ringside_find_full_torch out)
  file(GLOB candidates "${CMAKE_SOURCE_DIR}/.env/cuda/lib/python3*/site-packages/torch")
  file(GLOB more "${CMAKE_SOURCE_DIR}/.env/oracle/lib/python3*/site-packages/torch")
  foreach(folder "${RINGSIDE_TORCH_DIR}" ${candidates} ${more})
    if(EXISTS "${folder}/lib/libtorch_cuda.so" AND EXISTS "${folder}/../nvidia/nccl/lib/libnccl.so.2"
       AND EXISTS "${folder}/../nvidia/cu13/lib/libcudart.so.13")
      cmake_path(NORMAL_PATH folder)
      set(${out} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)  # a toolkit may have been installed since the last configure
endif()
check_language(CUDA)
ringside_find_full_torch(_full_torch)
set(RINGSIDE_HAVE_CUDA OFF)
if(NOT CMAKE_CUDA_COMPILER)
  set(_cuda_missing "nvcc not found")
elseif(NOT _full_torch)
  set(_cuda_missing "no torch wheel with CUDA libraries (tools/setup.sh --oracle or --cuda installs one)")
else()
  set(RINGSIDE_HAVE_CUDA ON)
endif()
if(NOT RINGSIDE_HAVE_CUDA)
  if(RINGSIDE_CUDA)
    message(FATAL_ERROR "the link for CUDA was asked for, but: ${_cuda_missing}")
  endif()
  message(STATUS "CUDA and NCCL objects: skipped, ${_cuda_missing}")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
endif()
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
# The wheel's runtime, like the wheel's own libraries: not the toolkit's beside it.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
find_package(CUDAToolkit REQUIRED)
ringside_check_torch("${_full_torch}")
message(STATUS "CUDA and NCCL objects: built with nvcc ${CMAKE_CUDA_COMPILER_VERSION}, linked to ${_full_torch}")
cmake_path(SET _nvidia NORMALIZE "${_full_torch}/../nvidia")

# A kernel that spills registers, or has a stack, is not built: nobody would see that it is slow (tools/kernel_table.py shows
# what each takes).
set(RINGSIDE_NO_SPILLS "-Xptxas=-warn-spills,-warn-lmem-usage,-Werror")
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${RINGSIDE_NO_SPILLS}>")

add_library(ringside_torch_full INTERFACE)
# --no-as-needed: CUDA registers itself when its library is loaded, no symbol of it need be named.
target_link_libraries(ringside_torch_full INTERFACE
  "-Wl,--push-state,--no-as-needed,${_full_torch}/lib/libtorch_cuda.so,--pop-state"
  "${_full_torch}/lib/libc10_cuda.so" "${_full_torch}/lib/libtorch_cpu.so" "${_full_torch}/lib/libc10.so"
  "${_nvidia}/nccl/lib/libnccl.so.2" "${_nvidia}/cu13/lib/libcudart.so.13")

# Headers of CUDA and of the NCCL that the wheel pins.
add_library(ringside_cuda_headers INTERFACE)
target_include_directories(ringside_cuda_headers SYSTEM INTERFACE "${_nvidia}/nccl/include" ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(ringside_cuda_headers INTERFACE USE_C10D_NCCL)
target_link_libraries(ringside_cuda_headers INTERFACE ringside_torch)

add_library(ringside_sp_cuda STATIC
  "${CMAKE_SOURCE_DIR}/sp/attention/cuda/row_kernels.cu" "${CMAKE_SOURCE_DIR}/sp/attention/cuda/cudnn_attention.cpp" "${CMAKE_SOURCE_DIR}/sp/attention/cuda/kernels.cpp"
  "${CMAKE_SOURCE_DIR}/sp/mesh/nccl_groups.cpp")
target_include_directories(ringside_sp_cuda PUBLIC "${CMAKE_SOURCE_DIR}")
target_link_libraries(ringside_sp_cuda PUBLIC sp_ring_step sp_mesh ringside_cuda_headers)

# An object, not an archive: nothing names its symbols, it registers itself.
add_library(ringside_cuda_backend OBJECT "${CMAKE_SOURCE_DIR}/engine/device/device_backend_cuda.cpp")
target_link_libraries(ringside_cuda_backend PUBLIC ringside_sp_cuda engine_device_backend)
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE _architectures)
list(JOIN _architectures " " _architectures)
target_compile_definitions(ringside_cuda_backend PRIVATE RINGSIDE_CUDA_ARCHITECTURES="${_architectures}")
add_subdirectory("${CMAKE_SOURCE_DIR}/tools/bench/gpu" "${CMAKE_BINARY_DIR}/tools/bench/gpu" EXCLUDE_FROM_ALL)

# The decoder's operators on CUDA. Objects, not an archive: they register themselves, nothing names them.
set(_ops "${CMAKE_SOURCE_DIR}/engine/ops")
set(_kernels gated_activation qk_norm_rope rms_norm token_scores)
list(TRANSFORM _kernels REPLACE "(.+)" "${_ops}/\\1.cu" OUTPUT_VARIABLE _kernel_sources)
list(TRANSFORM _kernels REPLACE "(.+)" "${_ops}/\\1_cuda.cpp" OUTPUT_VARIABLE _implementations)
ringside_unity(_implementations ops_cuda "${_ops}/add_transposed_mm_cuda.cpp" ${_implementations})
add_library(ringside_ops_cuda OBJECT ${_kernel_sources} ${_implementations})
target_include_directories(ringside_ops_cuda PUBLIC "${CMAKE_SOURCE_DIR}")
target_link_libraries(ringside_ops_cuda PUBLIC engine_ops ringside_cuda_headers)

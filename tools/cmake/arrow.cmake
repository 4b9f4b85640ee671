# Arrow's C++ libraries from the PyPI wheel of pyarrow as an imported target. Only the module that reads Parquet links them.
if(NOT RINGSIDE_ARROW_DIR)
  foreach(_environment build oracle)
    file(GLOB _candidates "${CMAKE_SOURCE_DIR}/.env/${_environment}/lib/python3*/site-packages/pyarrow")
    list(APPEND _arrow_candidates ${_candidates})
  endforeach()
  if(_arrow_candidates)
    list(GET _arrow_candidates 0 _arrow_default)
  endif()
  set(RINGSIDE_ARROW_DIR "${_arrow_default}" CACHE PATH "the pyarrow folder of an installed pyarrow wheel" FORCE)
endif()

# Where modules are that programs load while they run. The run path of everything built here, so that the loader finds them.
set(RINGSIDE_MODULES "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_BUILD_RPATH "${RINGSIDE_MODULES}")

set(_arrow_libraries "${RINGSIDE_ARROW_DIR}/libparquet.so.2600" "${RINGSIDE_ARROW_DIR}/libarrow.so.2600")
foreach(_library ${_arrow_libraries})
  if(NOT EXISTS "${_library}")
    message(WARNING "Parquet files will be refused: ${_library} not found. Run tools/setup.sh, or set RINGSIDE_ARROW_DIR "
      "to the folder of pyarrow 26.")
    return()
  endif()
endforeach()
add_library(ringside_arrow INTERFACE)
target_include_directories(ringside_arrow SYSTEM INTERFACE "${RINGSIDE_ARROW_DIR}/include")
target_link_libraries(ringside_arrow INTERFACE ${_arrow_libraries})

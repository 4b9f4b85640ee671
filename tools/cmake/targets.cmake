# ringside_library(NAME name SOURCES ... DEPS ... [TORCH] [APART ...])
#   A static library whose dependencies are written out. TORCH adds LibTorch and the shared precompiled header. With
#   RINGSIDE_UNITY its sources are compiled several at a time; those under APART always alone.
# ringside_executable(NAME name SOURCES ... DEPS ... [TORCH] [CUDA] [UNITY])
#   An executable; its sources are compiled several at a time only with UNITY. CUDA, which implies TORCH, links it for CUDA
#   devices: the whole torch wheel, the CUDA backend and the operators for CUDA (only where RINGSIDE_HAVE_CUDA is set).
# ringside_test(NAME name SOURCES ... DEPS ... [APART ...] [TORCH] [CUDA] [LABELS ...] [TIMEOUT seconds]
#               [SERIAL | TOGETHER])
#   One Catch2 executable, each of its cases registered with ctest as "name: case". With RINGSIDE_UNITY its sources are compiled
#   several at a time, so that names in their anonymous namespaces must differ; those under APART always alone. TIMEOUT: of
#   each test, 120 by default. TOGETHER: the cases of a source file are one test, "name: file", in one process; for quick cases
#   with torch, whose process takes a quarter of a second to start.
#   Tests run two at a time (tools/test.sh), those with the longest timeouts first. SERIAL: a test that measures time or
#   uses both cores runs alone; of other executables the cases with the tag [serial] do.
# ringside_script_test(NAME name COMMAND ... [PYTHON oracle|any] [LABELS ...] [TIMEOUT seconds] [ENVIRONMENT ...]
#                      [SERIAL | HEAVY])
#   A test that a program other than Catch2 decides by its exit status. HEAVY: it starts several processes, so that it runs
#   beside an ordinary test, but never beside another HEAVY one. PYTHON puts an interpreter before COMMAND: oracle,
#   the one of .env/oracle, whose absence fails the test unless RINGSIDE_WITHOUT_ORACLE is set; any, the system's. The
#   variable PRESTARTED names the library of tests/support/prestarted.
set(RINGSIDE_UNITY_BATCH 8)
define_property(TARGET PROPERTY RINGSIDE_LABELS BRIEF_DOCS "labels of a test executable")

# ringside_unity(OUT NAME sources...): the files that stand for `sources`. Each includes a batch of them by its path from the
# root, so that its text is the same in every checkout and ccache finds it; CMake's own unity files name absolute paths.
function(ringside_unity out name)
  set(sources ${ARGN})
  list(LENGTH sources total)
  if(NOT RINGSIDE_UNITY OR total LESS 2)
    set(${out} ${sources} PARENT_SCOPE)
    return()
  endif()
  set(units)
  set(text)
  set(count 0)
  math(EXPR batches "(${total} + ${RINGSIDE_UNITY_BATCH} - 1) / ${RINGSIDE_UNITY_BATCH}")
  math(EXPR size "(${total} + ${batches} - 1) / ${batches}")
  foreach(index RANGE 1 ${total})
    math(EXPR at "${index} - 1")
    list(GET sources ${at} source)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    file(RELATIVE_PATH relative "${CMAKE_SOURCE_DIR}" "${source}")
    string(APPEND text "#include \"${relative}\"\n")
    math(EXPR left "${index} % ${size}")
    if(left EQUAL 0 OR index EQUAL total)
      math(EXPR count "${count} + 1")
      set(unit "${CMAKE_CURRENT_BINARY_DIR}/${name}_unity_${count}.cpp")
      file(CONFIGURE OUTPUT "${unit}" CONTENT "${text}" @ONLY)
      list(APPEND units "${unit}")
      set(text)
    endif()
  endforeach()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# ringside_target(name TORCH|"" ACCESS deps...): what libraries and executables have in common.
function(ringside_target name torch access)
  target_include_directories(${name} ${access} "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} ${access} ${ARGN})
  if(torch)
    target_link_libraries(${name} ${access} ringside_torch)
    target_precompile_headers(${name} REUSE_FROM ringside_torch_pch)
  endif()
endfunction()

function(ringside_library)
  cmake_parse_arguments(A "TORCH" "NAME" "SOURCES;DEPS;APART" ${ARGN})
  ringside_unity(A_SOURCES ${A_NAME} ${A_SOURCES})
  add_library(${A_NAME} STATIC ${A_SOURCES} ${A_APART})
  ringside_target(${A_NAME} ${A_TORCH} PUBLIC ${A_DEPS})
endfunction()

function(ringside_executable)
  cmake_parse_arguments(A "TORCH;CUDA;UNITY" "NAME" "SOURCES;DEPS" ${ARGN})
  if(A_UNITY)
    ringside_unity(A_SOURCES ${A_NAME} ${A_SOURCES})
  endif()
  add_executable(${A_NAME} ${A_SOURCES})
  if(A_CUDA)
    ringside_target(${A_NAME} TRUE PRIVATE ${A_DEPS} ringside_cuda_backend ringside_ops_cuda)
    set_target_properties(${A_NAME} PROPERTIES RINGSIDE_CUDA ON)
  else()
    ringside_target(${A_NAME} ${A_TORCH} PRIVATE ${A_DEPS})
  endif()
endfunction()

function(ringside_test)
  cmake_parse_arguments(A "TORCH;CUDA;SERIAL;TOGETHER" "NAME;TIMEOUT" "SOURCES;APART;DEPS;LABELS" ${ARGN})
  ringside_unity(A_SOURCES ${A_NAME} ${A_SOURCES})
  set(options)
  foreach(option TORCH CUDA)
    if(A_${option})
      list(APPEND options ${option})
    endif()
  endforeach()
  if(options)
    list(APPEND A_DEPS torch_test_start)
  endif()
  ringside_executable(NAME ${A_NAME} SOURCES ${A_SOURCES} ${A_APART} DEPS ${A_DEPS} catch_main ${options})
  set_property(GLOBAL APPEND PROPERTY RINGSIDE_TEST_TARGETS ${A_NAME})
  set_target_properties(${A_NAME} PROPERTIES RINGSIDE_LABELS "${A_LABELS}")
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  # ctest reads the list when it runs; until the executable is linked, one test that cannot start stands for it.
  set(cases "${CMAKE_CURRENT_BINARY_DIR}/${A_NAME}_cases.cmake")
  add_custom_command(TARGET ${A_NAME} POST_BUILD VERBATIM
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/tools/cmake/discover_tests.py"
      $<TARGET_FILE:${A_NAME}> ${A_NAME} ${A_TIMEOUT} $<BOOL:${A_SERIAL}> $<BOOL:${A_TOGETHER}> "${A_LABELS}" "${cases}")
  set(list "${CMAKE_CURRENT_BINARY_DIR}/${A_NAME}_list.cmake")
  file(CONFIGURE OUTPUT "${list}" @ONLY CONTENT
"if(EXISTS \"@cases@\")
  include(\"@cases@\")
else()
  add_test(@A_NAME@_NOT_BUILT @A_NAME@_NOT_BUILT)
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${list}")
endfunction()

function(ringside_script_test)
  cmake_parse_arguments(A "SERIAL;HEAVY" "NAME;TIMEOUT;PYTHON" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  set(python)
  if(A_PYTHON STREQUAL "oracle")
    set(python "${RINGSIDE_ORACLE_PYTHON}")
  elseif(A_PYTHON STREQUAL "any")
    set(python "${Python3_EXECUTABLE}")
  endif()
  add_test(NAME ${A_NAME} COMMAND ${python} ${A_COMMAND})
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} COST ${A_TIMEOUT}
    ENVIRONMENT "${A_ENVIRONMENT}")
  if(NOT RINGSIDE_ASAN)
    set_property(TEST ${A_NAME} APPEND PROPERTY ENVIRONMENT "PRESTARTED=$<TARGET_FILE:prestarted>")
  endif()
  if(A_SERIAL)
    set_tests_properties(${A_NAME} PROPERTIES RUN_SERIAL ON)
  endif()
  if(A_HEAVY)
    set_tests_properties(${A_NAME} PROPERTIES RESOURCE_LOCK several_processes)
  endif()
  if(A_PYTHON STREQUAL "oracle" AND RINGSIDE_WITHOUT_ORACLE)
    set_tests_properties(${A_NAME} PROPERTIES DISABLED ON)
  endif()
endfunction()

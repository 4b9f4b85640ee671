# `cmake --install build --prefix DIR`: the program, its configs and recipes, manual page and completion.
#
# The program keeps its run path, so it uses the torch wheel that it was built with. tools/bundle.sh makes an archive for
# other machines. Only the component `ringside`, so that the bundle's components stay apart.
install(PROGRAMS "$<TARGET_FILE:ringside>" DESTINATION bin COMPONENT ringside)
if(TARGET ringside_cuda)
  install(PROGRAMS "$<TARGET_FILE:ringside_cuda>" DESTINATION bin COMPONENT ringside OPTIONAL)
endif()
install(DIRECTORY configs recipes DESTINATION share/ringside COMPONENT ringside)
install(FILES README.md ARCHITECTURE.md DESTINATION share/doc/ringside COMPONENT ringside)
# Made by the program, so they are what this program does.
install(CODE [[
  set(_prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  foreach(_page "man;share/man/man1/ringside.1" "completion bash;share/bash-completion/completions/ringside"
      "completion zsh;share/zsh/site-functions/_ringside")
    list(GET _page 0 _words)
    list(GET _page 1 _file)
    string(REPLACE " " ";" _words "${_words}")
    get_filename_component(_folder "${_prefix}/${_file}" DIRECTORY)
    file(MAKE_DIRECTORY "${_folder}")
    execute_process(COMMAND "${_prefix}/bin/ringside" ${_words} OUTPUT_FILE "${_prefix}/${_file}"
      COMMAND_ERROR_IS_FATAL ANY)
    message(STATUS "Installing: ${_prefix}/${_file}")
  endforeach()
]] COMPONENT ringside)

// Preloaded into a program, notes each process that it starts in the file that SPAWN_LOG names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char* call) {
  const char* name = getenv("SPAWN_LOG");
  if (name == NULL) return;
  const int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (write(fd, call, strlen(call)) < 0 || write(fd, "\n", 1) < 0) abort();
  close(fd);
}

pid_t fork(void) {
  note("fork");
  return ((pid_t(*)(void))dlsym(RTLD_NEXT, "fork"))();
}

int execve(const char* path, char* const argv[], char* const envp[]) {
  note("execve");
  return ((int (*)(const char*, char* const[], char* const[]))dlsym(RTLD_NEXT, "execve"))(path, argv,
                                                                                          envp);
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  note("posix_spawn");
  return ((int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                   char* const[], char* const[]))dlsym(RTLD_NEXT, "posix_spawn"))(
      pid, path, actions, attributes, argv, envp);
}

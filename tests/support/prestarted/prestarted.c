// Preloaded into a program with PRESTARTED_SOCKET set, stops it before main() and makes a process
// of it for each request that arrives there: a fork, so that what happens before main() happens
// once. In ringside that is the start of LibTorch, a fifth of a second of computing.
//
// A process made here is in nothing but that different from one that was executed: it has the
// request's arguments, environment, folder and standard streams, no other file, and begins at
// main(). The same holds for a process that it makes of itself by executing /proc/self/exe.
// prestarted.py sends the requests; it describes them.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*Main)(int, char**, char**);
typedef int (*StartMain)(Main, int, char**, void (*)(void), void (*)(void), void (*)(void), void*);
typedef int (*Exec)(const char*, char* const[], char* const[]);

enum { kMaxRequest = 1 << 20, kStreams = 3 };

extern char** environ;
static Main program_main;
static int is_made_here;

static char** copy_of(char* const strings[]) {
  int count = 0;
  while (strings[count] != NULL) ++count;
  char** copy = calloc((size_t)count + 1, sizeof(char*));
  for (int i = 0; i < count; ++i) copy[i] = strdup(strings[i]);
  return copy;
}

static int length_of(char* const strings[]) {
  int count = 0;
  while (strings[count] != NULL) ++count;
  return count;
}

// The next `count` strings of a request, and a null pointer.
static char** take_strings(char** at, uint32_t count) {
  char** strings = calloc(count + 1, sizeof(char*));
  for (uint32_t i = 0; i < count; ++i) {
    strings[i] = *at;
    *at += strlen(*at) + 1;
  }
  return strings;
}

// Becomes the process that `text` asks for, up to main(), and returns its arguments.
static char** become(char* text, const int streams[kStreams]) {
  uint32_t counts[2];  // of arguments and of variables
  memcpy(counts, text, sizeof(counts));
  text += sizeof(counts);
  const char* folder = text;
  text += strlen(text) + 1;
  char** arguments = take_strings(&text, counts[0]);
  environ = take_strings(&text, counts[1]);
  for (int i = 0; i < kStreams; ++i) {
    if (dup2(streams[i], i) < 0) _exit(126);
  }
  close_range(kStreams, ~0U, 0);
  if (chdir(folder) != 0) _exit(126);
  is_made_here = 1;
  return arguments;
}

// Makes a process whose parent is the nearest ancestor that adopts orphans, not this process.
// Returns 0 in that process, and its id here; -1 if there is none.
static pid_t fork_orphan(void) {
  pid_t* made = mmap(NULL, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return -1;
  const pid_t between = fork();
  if (between == 0) {
    const pid_t pid = fork();
    if (pid == 0) return 0;
    *made = pid;
    _exit(0);
  }
  waitpid(between, NULL, 0);
  const pid_t pid = between < 0 ? -1 : *made;
  munmap(made, sizeof(pid_t));
  return pid;
}

// Serves requests until their sender is gone. Returns in each process made, with its arguments.
static char** serve(int server) {
  static char text[kMaxRequest];
  static union {
    char bytes[CMSG_SPACE(kStreams * sizeof(int))];
    struct cmsghdr header;
  } control;
  for (;;) {
    struct iovec all = {text, sizeof(text)};
    struct msghdr request = {0};
    request.msg_iov = &all;
    request.msg_iovlen = 1;
    request.msg_control = control.bytes;
    request.msg_controllen = sizeof(control.bytes);
    const ssize_t got = recvmsg(server, &request, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(0);
    const struct cmsghdr* header = CMSG_FIRSTHDR(&request);
    if (header == NULL || (request.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) _exit(125);
    int streams[kStreams];
    memcpy(streams, CMSG_DATA(header), sizeof(streams));
    const pid_t pid = fork_orphan();
    if (pid == 0) return become(text, streams);
    for (int i = 0; i < kStreams; ++i) close(streams[i]);
    if (send(server, &pid, sizeof(pid), MSG_NOSIGNAL) != sizeof(pid)) _exit(125);
  }
}

static int main_of_process(int argc, char** argv, char** variables) {
  const char* server = getenv("PRESTARTED_SOCKET");
  if (server == NULL) return program_main(argc, argv, variables);
  char** arguments = serve(atoi(server));
  return program_main(length_of(arguments), arguments, environ);
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void* stack_end) {
  program_main = main;
  const StartMain start = (StartMain)dlsym(RTLD_NEXT, "__libc_start_main");
  return start(main_of_process, argc, argv, init, fini, rtld_fini, stack_end);
}

static void close_on_exec(void) {
  DIR* files = opendir("/proc/self/fd");
  if (files == NULL) _exit(126);
  for (const struct dirent* entry = readdir(files); entry != NULL; entry = readdir(files)) {
    const int file = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && file != dirfd(files) &&
        (fcntl(file, F_GETFD) & FD_CLOEXEC) != 0) {
      close(file);
    }
  }
  closedir(files);
}

int execve(const char* path, char* const argv[], char* const variables[]) {
  if (!is_made_here || strcmp(path, "/proc/self/exe") != 0) {
    return ((Exec)dlsym(RTLD_NEXT, "execve"))(path, argv, variables);
  }
  char** arguments = copy_of(argv);
  environ = copy_of(variables);
  close_on_exec();
  exit(program_main(length_of(arguments), arguments, environ));
}

// Tells prestarted_test.py what kind of process it is.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char** environ;
static pid_t born;  // the process that came here before main()

__attribute__((constructor)) static void begin(void) { born = getpid(); }

static int tell(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) printf("%s|", argv[i]);
  printf("\n");
  for (char** variable = environ; *variable != NULL; ++variable) printf("%s\n", *variable);
  char text[4096];
  printf("%s\n", getcwd(text, sizeof(text)));
  while (fgets(text, sizeof(text), stdin) != NULL) printf("%s", text);
  printf("files");
  for (int file = 0; file < 256; ++file) {
    if (fcntl(file, F_GETFD) >= 0) printf(" %d", file);
  }
  printf("\n");
  fflush(stdout);
  fprintf(stderr, "an error\n");
  return 0;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "tell") == 0) return tell(argc, argv);
  if (strcmp(what, "end") == 0) {
    return strcmp(argv[2], "kill") == 0 ? raise(SIGKILL) : atoi(argv[2]);
  }
  if (strcmp(what, "sleep") == 0) {
    printf("asleep\n");
    fflush(stdout);
    return (int)sleep(1000);
  }
  if (strcmp(what, "again") == 0) {
    open("/dev/null", O_RDONLY | O_CLOEXEC);
    char* arguments[] = {"again", "tell", "from itself", NULL};
    char* variables[] = {"C=2", NULL};
    execve("/proc/self/exe", arguments, variables);
  }
  if (strcmp(what, "born") == 0) {
    printf("%d\n", born);
    return 0;
  }
  return 2;
}

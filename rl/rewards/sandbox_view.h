// Files that a sandboxed program sees: a private root with system folders read-only, the folders of
// its interpreter, its own folder, and empty folders for temporary files. Linux only.
//
// Everything a child process needs is prepared before the fork. After it, enter() and
// restrict_files() make system calls only: they do not allocate, throw or take a lock.
#pragma once

#include <string>
#include <vector>

namespace ringside::rl {

class SandboxView {
 public:
  // program: absolute path of the interpreter; work: the program's folder, which it may change;
  // root: an empty folder, where the private root is put together.
  SandboxView(const std::string& program, const std::string& work, const std::string& root);

  // Makes the view this process's root; call it in mount and process namespaces of one's own. In a
  // user namespace of one's own (own_user) the caller's ids are mapped to themselves first. What is
  // written outside of `work` is in memory, at most 64 MiB, and ends with the namespace. /proc is
  // that of the process namespace, or empty where the kernel does not permit it.
  // Returns whether that worked; if not, the process may only end or start a program that calls
  // restrict_files().
  bool enter(bool own_user) const;

  // The same limits by Landlock, for this process and what it starts, without private folders:
  // nothing outside of `work` can be written. Needs no_new_privs.
  // Returns whether the kernel enforces them.
  bool restrict_files() const;

 private:
  enum class Kind { kFolder, kSharedFolder, kFile, kLink, kReadOnly, kWritable, kDevice };
  struct Step {
    Kind kind;
    std::string target;  // in the private root
    std::string source;  // of a link or a mount
  };
  void add_folders(const std::string& path);
  void add_system_path(const std::string& path);
  void add_interpreter(const std::string& program);
  void add_mount(Kind kind, const std::string& path);
  bool is_visible(const std::string& path) const;
  static bool run(const Step& step);

  std::string root_;
  std::string work_;
  std::string uid_map_;
  std::string gid_map_;
  std::string proc_;
  std::vector<std::string> readable_;
  std::vector<Step> steps_;
};

// Whether the kernel has Landlock.
bool has_landlock();

}  // namespace ringside::rl

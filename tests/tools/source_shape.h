// Sizes of the functions and classes of a C++ source file, read from its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringside::tools {

struct FunctionSize {
  std::string head;  // as written before the body
  int line = 0;      // of the opening brace, from 1
  int lines = 0;     // of the body, both braces included
};

// Members are data members and methods, nested types, aliases and what is defaulted or deleted left
// out.
struct ClassSize {
  std::string name;
  int line = 0;
  int data = 0;
  int methods = 0;
};

struct SourceShape {
  std::vector<FunctionSize> functions;
  std::vector<ClassSize> classes;
};

// Exact for code as clang-format writes it. A lambda belongs to the function around it.
SourceShape shape_of(std::string_view text);

}  // namespace ringside::tools

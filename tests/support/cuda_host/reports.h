// What the execution model found wrong in kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringside::cuda_host {

enum class Fault {
  kRace,              // two threads, one writes, nothing orders them
  kDivergentBarrier,  // not all threads of the block wait at the same barrier
  kOutOfBounds,       // an access outside every buffer and array
  kMisaligned,        // a load or store at an address that its type does not allow
  kUnwritten,         // a read of memory that nobody has written
  kLanes,             // a warp's shuffle, vote or barrier without a lane of its mask
  kAssertion,         // CUDA_KERNEL_ASSERT
  kLaunch,            // a launch that a GPU refuses
};

// In words: "race".
const char* name_of(Fault fault);

// A line of the source, with the function that it is in.
struct SourceLine {
  std::string file;  // from the root of the sources
  int line = 0;
  std::string function;
};

struct Report {
  Fault fault = Fault::kRace;
  std::string kernel;
  std::string what;               // in words, with the names of buffers and arrays
  std::vector<uintptr_t> calls;   // addresses in the code: where, innermost first
  std::vector<uintptr_t> others;  // for a race: where the other thread was
};

// The lines of such addresses, by binutils' addr2line; without it only functions are known.
std::vector<SourceLine> lines_of(const std::vector<uintptr_t>& calls);

// The report in words, with the lines of the source.
std::string text_of(const Report& report);

// All reports since the last call.
std::vector<Report> take_reports();

// Adds a report. One fault of a kernel at one place of the code is kept once.
void add_report(Report report);

}  // namespace ringside::cuda_host

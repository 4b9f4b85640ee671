// The trainer's side for nccl_wire_test.py, without a GPU:
//   id                    the pickled id of the golden test, in hex
//   buckets               for each line "LIMIT SIZE..." of its input the cuts, "first last bytes "
//   one after the other, on a line vllm WORLD            rank 0 of a vLLM group: prints its port,
//   announces that id, stays until its input ends custom NAME WORLD     rank 0 of a process group
//   over Gloo: prints its port, broadcasts 0 1 2 3, stays until its input ends
#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "rl/publish/nccl_store.h"
#include "rl/publish/nccl_wire.h"
#include "sp/mesh/c10d_communicator.h"

namespace {

using namespace ringside;
using std::chrono::seconds;

std::array<uint8_t, rl::kNcclIdBytes> golden_id() {
  std::array<uint8_t, rl::kNcclIdBytes> id{};
  for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(i * 37 + 11);
  return id;
}

void wait_for_end() {
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

int print_id() {
  for (const uint8_t byte : rl::pickled_nccl_id(golden_id())) std::printf("%02x", byte);
  return 0;
}

int print_buckets() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    int64_t limit = 0;
    words >> limit;
    std::vector<int64_t> sizes;
    for (int64_t size = 0; words >> size;) sizes.push_back(size);
    for (const rl::Bucket& b : rl::vllm_buckets(sizes, limit)) {
      std::cout << b.first << ' ' << b.last << ' ' << b.bytes << ' ';
    }
    std::cout << '\n';
  }
  return 0;
}

int serve_vllm(int64_t world_size) {
  rl::GroupStore listener("127.0.0.1", 0);
  std::cout << listener.port() << std::endl;
  const auto store = listener.open(world_size, seconds(60));
  rl::announce_vllm_id(*store, golden_id());
  wait_for_end();
  return 0;
}

int serve_custom(const std::string& group_name, int64_t world_size) {
  rl::GroupStore listener("127.0.0.1", 0);
  std::cout << listener.port() << std::endl;
  const auto store =
      rl::custom_group_store(listener.open(world_size, seconds(60)), group_name, "cpu");
  auto options = c10d::ProcessGroupGloo::Options::create(seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto group = sp::make_c10d_communicator(
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, static_cast<int>(world_size), options));
  at::Tensor tensor = at::arange(4, at::kFloat);
  group->broadcast(tensor, 0, "test");
  wait_for_end();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string what = words.empty() ? "" : words[0];
  if (what == "id") return print_id();
  if (what == "buckets") return print_buckets();
  if (what == "vllm") return serve_vllm(std::stoll(words.at(1)));
  if (what == "custom") return serve_custom(words.at(1), std::stoll(words.at(2)));
  return 2;
}

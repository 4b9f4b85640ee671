// Joins a weight group as rank 0 on a GPU and broadcasts a few tensors of known values: vllm HOST
// PORT WORLD, or sglang HOST PORT WORLD NAME. For a machine with GPUs and a server; never run.
#include <ATen/ATen.h>

#include <iostream>
#include <string>
#include <vector>

#include "rl/publish/nccl_weight_group.h"

int main(int argc, char** argv) {
  using namespace ringside::rl;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 4) {
    std::cerr << "usage: weight_group_probe vllm|sglang HOST PORT WORLD [NAME]\n";
    return 2;
  }
  GroupStore store(words[1], static_cast<uint16_t>(std::stoi(words[2])));
  const int64_t world_size = std::stoll(words[3]);
  const std::chrono::seconds timeout(120);
  const auto group = words[0] == "vllm"
                         ? make_vllm_group(store, world_size, timeout)
                         : make_sglang_group(store, words.at(4), world_size, timeout);
  std::vector<at::Tensor> tensors;
  for (int64_t i = 1; i <= 4; ++i) {
    tensors.push_back(at::full({i, 1000}, static_cast<double>(i),
                               at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16)));
  }
  group->broadcast(tensors);
  std::cout << "sent " << tensors.size() << " tensors\n";
  return 0;
}

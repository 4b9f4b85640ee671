// Collectives with NCCL's rules: what they compute, when they run, and what a deadline reports.
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/standin/two_ranks.h"
#include "tests/support/catch.h"

namespace ringside::standin {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An all-to-all whose backward is an all-to-all.
class ExchangedRows : public torch::autograd::Function<ExchangedRows> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            sp::Communicator* group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return exchange(x, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* group = reinterpret_cast<sp::Communicator*>(context->saved_data["group"].toInt());
    return {exchange(gradients[0], *group), at::Tensor()};
  }

 private:
  static at::Tensor exchange(const at::Tensor& x, sp::Communicator& group) {
    const std::vector<int64_t> counts(group.size(), x.numel() / group.size());
    return group.all_to_all(x.contiguous().view({-1}), counts, counts, "rows").view(x.sizes());
  }
};

// Gradient of a rank's weight through two exchanges, summed over the ranks.
at::Tensor exchanged_gradient(sp::Communicator& group, c10::Device where) {
  const double scale = static_cast<double>(group.rank()) + 1.0;
  const at::Tensor weight = at::arange(16, at::kFloat).view({4, 4}).to(where).requires_grad_();
  const at::Tensor x = at::full({4, 4}, scale, at::TensorOptions().device(where));
  const at::Tensor y = ExchangedRows::apply(x.matmul(weight), &group);
  ExchangedRows::apply(y * scale, &group).pow(2).sum().backward();
  at::Tensor gradient = weight.grad().clone();
  group.all_reduce_sum(gradient, "gradient");
  return gradient;
}

TEST_CASE("collectives inside backward give four ranks the bits of Gloo on the CPU") {
  Scope scope;
  std::vector<at::Tensor> there(4), here(4);
  const sp::MeshShape shape{1, 1, 4};
  test::run_ranks(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    here[mesh.rank()] = exchanged_gradient(*groups.tensors(sp::axes::kUlysses), at::kCPU);
  });
  run_standin_ranks(
      shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device where) {
        // A model may also use the engine's threads: rank 2 does.
        c10::AutogradState::get_tls_state().set_multithreading_enabled(mesh.rank() == 2);
        there[mesh.rank()] = exchanged_gradient(*groups.tensors(sp::axes::kUlysses), where).cpu();
      });
  for (int rank = 0; rank < 4; ++rank) {
    INFO("rank " << rank);
    CHECK(at::equal(there[rank], here[rank]));
  }
  scope.finish();
  CHECK(scope.text() == "");
}

// The result of each call of a group of two ranks.
std::vector<at::Tensor> results_of_calls(sp::Communicator& group, const at::Tensor& x) {
  at::Tensor sum = x.clone(), largest = x.clone(), sent = x.clone(), received = at::empty_like(x);
  group.all_reduce_sum(sum, "t");
  group.all_reduce_max(largest, "t");
  group.broadcast(sent, 1, "t");
  const int64_t peer = 1 - group.rank();
  group.send_recv(x, peer, received, peer, "t")->wait();
  const std::vector<int64_t> rows{2, 4};
  return {sum,
          largest,
          sent,
          received,
          group.all_gather(x, "t"),
          group.all_gather_rows(x.narrow(0, 0, rows[group.rank()]), rows, "t"),
          group.reduce_scatter_rows(x, rows, "t")};
}

TEST_CASE("every call of a communicator gives Gloo's result, and none waits for the device") {
  Scope scope;
  run_standin_ranks(
      {1, 2, 1}, [](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device where) {
        const at::Tensor x = at::arange(6, at::kFloat) * static_cast<double>(mesh.rank() + 1);
        const auto here = results_of_calls(*groups.control(sp::axes::kRing), x);
        const at::Tensor x_there = x.to(where);
        std::vector<at::Tensor> there;
        {
          const NoHostWaits none(where.index(), "collectives");
          there = results_of_calls(*groups.tensors(sp::axes::kRing), x_there);
        }
        for (size_t i = 0; i < here.size(); ++i) {
          TORCH_CHECK(at::equal(there[i].cpu(), here[i]), "call ", i, " of rank ", mesh.rank());
        }
      });
  CHECK(scope.text() == "");
}

TEST_CASE("wait() orders the stream and does not block the host") {
  Scope scope;
  std::atomic<bool> first_rank_waited{false};
  const auto errors = run_two_ranks([&](const TwoRankContext& context) {
    const at::Tensor x = context.ones({4});
    if (context.rank == 1) {
      // Launches only after rank 0 has come back from wait().
      while (!first_rank_waited) {
        std::this_thread::yield();
      }
    }
    all_reduce(context.first, x)->wait();
    first_rank_waited = true;
    TORCH_CHECK(x.sum().item<float>() == 8);
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  CHECK(scope.text() == "");
}

TEST_CASE("ranks that use two communicators in different orders are ended with both orders named") {
  Scope scope;
  const auto errors = run_two_ranks(
      [](const TwoRankContext& context) {
        const at::Tensor x = context.ones({4}), y = context.ones({2});
        const auto one = all_reduce(context.rank == 0 ? context.first : context.second, x);
        const auto other = all_reduce(context.rank == 0 ? context.second : context.first, y);
        one->wait();
        other->wait();
        (x.sum() + y.sum()).item<float>();
      },
      std::chrono::milliseconds(200));
  const std::string first =
      "standin:0: in allreduce of 4 Float [first], then allreduce of 2 Float "
      "[second]";
  const std::string second =
      "standin:1: in allreduce of 4 Float [second], then allreduce of 2 "
      "Float [first]";
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.find("no match within 200 ms") != std::string::npos);
    CHECK(error.find(first) != std::string::npos);
    CHECK(error.find(second) != std::string::npos);
  }
  REQUIRE(scope.reports().size() == 1);
  CHECK(scope.reports()[0].fault == Fault::kCollectiveDeadline);
}

TEST_CASE("two sends that meet hang, and run when both ranks group them with their receives") {
  for (const bool grouped : {false, true}) {
    Scope scope;
    const auto errors = run_two_ranks(
        [&](const TwoRankContext& context) {
          const at::Tensor x = context.ones({3}), y = at::empty({3}, on_device(context.rank));
          if (grouped) {
            context.first->startCoalescing();
          }
          const auto sending = send(context.first, x, 1 - context.rank);
          auto receiving = receive(context.first, y, 1 - context.rank);
          if (grouped) {
            receiving = context.first->endCoalescing();
          }
          receiving->wait();
          TORCH_CHECK(y.sum().item<float>() == 3);
        },
        grouped ? std::chrono::seconds(10) : std::chrono::milliseconds(200));
    INFO(errors[0]);
    CHECK((errors[0] == "") == grouped);
    CHECK((errors[1] == "") == grouped);
    CHECK(scope.text().empty() == grouped);
    if (!grouped) {
      CHECK(errors[0].find("standin:0: in send of 3 Float to standin:1 [first], then receive of 3 "
                           "Float from standin:1 [first]") != std::string::npos);
      CHECK(errors[0].find("standin:1: in send of 3 Float to standin:0 [first]") !=
            std::string::npos);
    }
  }
}

// FSDP releases the storage of a gathered unit whether or not a kernel has read it: a rank without
// rows to score reads nothing. Its stream has waited for the gather, so the memory is free.
TEST_CASE("a transfer does not write into memory that was released and handed out again") {
  Scope scope;
  const auto errors = run_two_ranks([](const TwoRankContext& context) {
    const at::Tensor ones = context.ones({256}), threes = ones * 3;
    const at::Tensor out = at::empty({256}, ones.options());
    if (context.rank == 1) {  // the gather of rank 0 cannot move its data before
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    all_gather(context.first, out, ones.narrow(0, 0, 128))->wait();
    const void* const released = out.const_data_ptr();
    out.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, out.device()});
    const at::Tensor result = threes.flip({0});
    TORCH_CHECK(result.const_data_ptr() == released, "the test needs the same memory");
    context.first->barrier()->wait();
    TORCH_CHECK(result.eq(3).all().item<bool>(), "the gather overwrote another tensor");
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  CHECK(scope.text() == "");
}

TEST_CASE("two ranks on one device are refused") {
  Scope scope;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto fabric = make_fabric(std::chrono::seconds(1));
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = error_of([&] { connect_backend(fabric, store, "twice", rank, {0, 0}); });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& error : errors) {
    CHECK(error.find("twice: two ranks share a device") != std::string::npos);
  }
}

}  // namespace
}  // namespace ringside::standin

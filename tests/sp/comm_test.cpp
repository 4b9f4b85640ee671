// Guards: ranks mapped to the wrong axis, uneven or empty splits in an all-to-all, transfers that cross, and counters
// that disagree with what was sent.
#include "sp/comm/mesh.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

TEST_CASE("mesh axes, outermost first: dp, ring, ulysses") {
  const sp::Mesh mesh({2, 2, 3}, 10);  // dp 1, sp 4 = ring 1, ulysses 1
  CHECK(mesh.dp_rank() == 1);
  CHECK(mesh.ring_rank() == 1);
  CHECK(mesh.ulysses_rank() == 1);
  CHECK(mesh.group(sp::MeshAxis::kUlysses) == std::vector<int64_t>{9, 10, 11});
  CHECK(mesh.group(sp::MeshAxis::kRing) == std::vector<int64_t>{7, 10});
  CHECK(mesh.group(sp::MeshAxis::kSp) == std::vector<int64_t>{6, 7, 8, 9, 10, 11});
  CHECK(mesh.group(sp::MeshAxis::kDp) == std::vector<int64_t>{4, 10});
  CHECK(mesh.group(sp::MeshAxis::kWorld).size() == 12);
  CHECK_THROWS_WITH(sp::Mesh({1, 2, 2}, 4), Catch::Contains("rank 4 of a world of 4"));
  CHECK_THROWS_WITH(sp::Mesh({1, 0, 2}, 0), Catch::Contains("ring 0"));
}

TEST_CASE("all_to_all with uneven and empty splits; counters exclude oneself") {
  test::run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    const int64_t me = mesh.rank();
    // Rank r sends r + p elements of value 10 r + p to rank p, except that rank 0 sends itself nothing.
    std::vector<at::Tensor> parts;
    std::vector<int64_t> send, receive;
    for (int64_t p = 0; p < 3; ++p) {
      send.push_back(me + p);
      receive.push_back(me + p);
      parts.push_back(at::full({me + p}, 10.0 * me + p, at::kFloat));
    }
    const at::Tensor got = comms.ulysses->all_to_all(at::cat(parts), send, receive, "test");
    std::vector<at::Tensor> expected;
    for (int64_t p = 0; p < 3; ++p) {
      expected.push_back(at::full({me + p}, 10.0 * p + me, at::kFloat));
    }
    TORCH_CHECK(at::equal(got, at::cat(expected)), "got ", got);
    TORCH_CHECK(comms.ulysses->sent_bytes().at("test") == 4 * (3 * me + 3 - 2 * me));
  });
}

TEST_CASE("a rank with nothing at all takes part in an all_to_all") {
  test::run_ranks({1, 1, 2}, [](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    const bool sender = mesh.rank() == 0;
    const at::Tensor send = at::ones({sender ? 3 : 0});
    const std::vector<int64_t> to{0, sender ? 3 : 0}, from{sender ? 0 : 3, 0};
    const at::Tensor got = comms.ulysses->all_to_all(send, to, from, "test");
    TORCH_CHECK(got.numel() == (sender ? 0 : 3));
    const at::Tensor none = comms.ulysses->all_to_all(at::empty({0}), {0, 0}, {0, 0}, "test");
    TORCH_CHECK(none.numel() == 0);
  });
}

TEST_CASE("reductions, gathers, broadcasts and ring transfers") {
  test::run_ranks({1, 3, 1}, [](const sp::Mesh& mesh, const sp::MeshCommunicators& comms) {
    const int64_t me = mesh.rank();
    at::Tensor sum = at::full({2}, me + 1.0, at::kDouble);
    comms.world->all_reduce_sum(sum, "sum");
    TORCH_CHECK(sum[0].item<double>() == 6.0);
    at::Tensor highest = at::full({1}, static_cast<double>(me), at::kDouble);
    comms.world->all_reduce_max(highest, "max");
    TORCH_CHECK(highest.item<double>() == 2.0);
    const at::Tensor gathered = comms.world->all_gather(at::full({2}, me, at::kLong), "gather");
    TORCH_CHECK(at::equal(gathered.select(1, 0), at::arange(3, at::kLong)));
    at::Tensor from_root = at::full({2}, static_cast<double>(me));
    comms.world->broadcast(from_root, 1, "broadcast");
    TORCH_CHECK(from_root[1].item<double>() == 1.0);
    at::Tensor first = at::empty({1}), second = at::empty({me == 1 ? 0 : 2});
    auto a = comms.ring->send_recv(at::full({1}, static_cast<float>(me)), (me + 1) % 3, first, (me + 2) % 3, "ring");
    auto b = comms.ring->send_recv(at::full({me == 0 ? 0 : 2}, 7.0f), (me + 1) % 3, second, (me + 2) % 3, "ring");
    b->wait();
    a->wait();
    TORCH_CHECK(first.item<float>() == static_cast<float>((me + 2) % 3));
    TORCH_CHECK(me == 1 || second[0].item<float>() == 7.0f);
    TORCH_CHECK(comms.ring->sent_bytes().at("ring") == 4 + (me == 0 ? 0 : 8));
  });
}

TEST_CASE("a rank that never comes is a timeout, not a hang") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::Mesh mesh({1, 1, 2}, 0);
  CHECK_THROWS(sp::connect_mesh(mesh, store, "127.0.0.1", std::chrono::milliseconds(300)));
}

// Guards: ranks mapped to the wrong axis, uneven or empty splits in an all-to-all, transfers that
// cross, counters that disagree with what was sent, sums that depend on who adds them, and sp
// groups across nodes unnoticed.
#include "sp/mesh/group_scope.h"
#include "sp/mesh/process_groups.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

// Tests hold both kinds of groups to the same results.
using Run = void (*)(sp::MeshShape, const test::RankBody&);

void over_gloo(sp::MeshShape shape, const test::RankBody& body) { test::run_ranks(shape, body); }

void in_memory(sp::MeshShape shape, const test::RankBody& body) {
  test::run_ranks_in_memory(shape, body);
}

}  // namespace

TEST_CASE("mesh axes, outermost first: dp, ring, ulysses") {
  const sp::Mesh mesh({2, 2, 3}, 10);  // dp 1, sp 4 = ring 1, ulysses 1
  CHECK(mesh.dp_rank() == 1);
  CHECK(mesh.ring_rank() == 1);
  CHECK(mesh.ulysses_rank() == 1);
  CHECK(mesh.ranks(sp::axes::kUlysses) == std::vector<int64_t>{9, 10, 11});
  CHECK(mesh.ranks(sp::axes::kRing) == std::vector<int64_t>{7, 10});
  CHECK(mesh.ranks(sp::axes::kSp) == std::vector<int64_t>{6, 7, 8, 9, 10, 11});
  CHECK(mesh.ranks(sp::axes::kBatch) == std::vector<int64_t>{4, 10});
  CHECK(mesh.ranks(sp::axes::kLoss).size() == 12);
  CHECK_THROWS_WITH(sp::Mesh({1, 2, 2}, 4), Catch::Contains("rank 4 of a world of 4"));
  CHECK_THROWS_WITH(sp::Mesh({1, 0, 2}, 0), Catch::Contains("ring 0"));
}

TEST_CASE("all_to_all with uneven and empty splits; counters exclude oneself") {
  const Run run_ranks = GENERATE(&over_gloo, &in_memory);
  run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const int64_t me = mesh.rank();
    // Rank r sends r + p elements of value 10 r + p to rank p, except that rank 0 sends itself
    // nothing.
    std::vector<at::Tensor> parts;
    std::vector<int64_t> send, receive;
    for (int64_t p = 0; p < 3; ++p) {
      send.push_back(me + p);
      receive.push_back(me + p);
      parts.push_back(at::full({me + p}, 10.0 * me + p, at::kFloat));
    }
    const at::Tensor got =
        comms.tensors(sp::axes::kUlysses)->all_to_all(at::cat(parts), send, receive, "test");
    std::vector<at::Tensor> expected;
    for (int64_t p = 0; p < 3; ++p) {
      expected.push_back(at::full({me + p}, 10.0 * p + me, at::kFloat));
    }
    TORCH_CHECK(at::equal(got, at::cat(expected)), "got ", got);
    TORCH_CHECK(comms.tensors(sp::axes::kUlysses)->sent_bytes().at("test") ==
                4 * (3 * me + 3 - 2 * me));
  });
}

TEST_CASE("a rank with nothing at all takes part in an all_to_all") {
  const Run run_ranks = GENERATE(&over_gloo, &in_memory);
  run_ranks({1, 1, 2}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const bool sender = mesh.rank() == 0;
    const at::Tensor send = at::ones({sender ? 3 : 0});
    const std::vector<int64_t> to{0, sender ? 3 : 0}, from{sender ? 0 : 3, 0};
    const at::Tensor got = comms.tensors(sp::axes::kUlysses)->all_to_all(send, to, from, "test");
    TORCH_CHECK(got.numel() == (sender ? 0 : 3));
    const at::Tensor none =
        comms.tensors(sp::axes::kUlysses)->all_to_all(at::empty({0}), {0, 0}, {0, 0}, "test");
    TORCH_CHECK(none.numel() == 0);
  });
}

TEST_CASE("reductions, gathers, broadcasts and ring transfers") {
  const Run run_ranks = GENERATE(&over_gloo, &in_memory);
  run_ranks({1, 3, 1}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const int64_t me = mesh.rank();
    at::Tensor sum = at::full({2}, me + 1.0, at::kDouble);
    comms.tensors(sp::axes::kLoss)->all_reduce_sum(sum, "sum");
    TORCH_CHECK(sum[0].item<double>() == 6.0);
    at::Tensor highest = at::full({1}, static_cast<double>(me), at::kDouble);
    comms.tensors(sp::axes::kLoss)->all_reduce_max(highest, "max");
    TORCH_CHECK(highest.item<double>() == 2.0);
    const at::Tensor gathered =
        comms.tensors(sp::axes::kLoss)->all_gather(at::full({2}, me, at::kLong), "gather");
    TORCH_CHECK(at::equal(gathered.select(1, 0), at::arange(3, at::kLong)));
    at::Tensor from_root = at::full({2}, static_cast<double>(me));
    comms.tensors(sp::axes::kLoss)->broadcast(from_root, 1, "broadcast");
    TORCH_CHECK(from_root[1].item<double>() == 1.0);
    at::Tensor first = at::empty({1}), second = at::empty({me == 1 ? 0 : 2});
    auto a = comms.tensors(sp::axes::kRing)
                 ->send_recv(at::full({1}, static_cast<float>(me)), (me + 1) % 3, first,
                             (me + 2) % 3, "ring");
    auto b = comms.tensors(sp::axes::kRing)
                 ->send_recv(at::full({me == 0 ? 0 : 2}, 7.0f), (me + 1) % 3, second, (me + 2) % 3,
                             "ring");
    b->wait();
    a->wait();
    TORCH_CHECK(first.item<float>() == static_cast<float>((me + 2) % 3));
    TORCH_CHECK(me == 1 || second[0].item<float>() == 7.0f);
    TORCH_CHECK(comms.tensors(sp::axes::kRing)->sent_bytes().at("ring") == 4 + (me == 0 ? 0 : 8));
  });
}

TEST_CASE("exchanges under way at once keep apart; wait in any order") {
  const Run run_ranks = GENERATE(&over_gloo, &in_memory);
  run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const int64_t me = mesh.rank();
    std::vector<at::Tensor> received;
    std::vector<std::unique_ptr<sp::Transfer>> transfers;
    for (int64_t round = 0; round < 4; ++round) {
      // To rank p: p + round elements 100 round + 10 me + p, none at all in the own place.
      std::vector<at::Tensor> parts;
      std::vector<int64_t> send, receive;
      for (int64_t p = 0; p < 3; ++p) {
        send.push_back(p == me ? 0 : p + round);
        receive.push_back(p == me ? 0 : me + round);
        parts.push_back(at::full({send.back()}, 100.0 * round + 10.0 * me + p, at::kDouble));
      }
      received.push_back(at::full({2 * (me + round)}, -1.0, at::kDouble));
      transfers.push_back(
          comms.tensors(sp::axes::kUlysses)
              ->start_all_to_all(at::cat(parts), send, received.back(), receive, "test"));
    }
    for (int64_t round = 3; round >= 0; --round) {
      transfers[round]->wait();
      std::vector<at::Tensor> expected;
      for (int64_t p = 0; p < 3; ++p) {
        expected.push_back(
            at::full({p == me ? 0 : me + round}, 100.0 * round + 10.0 * p + me, at::kDouble));
      }
      TORCH_CHECK(at::equal(received[round], at::cat(expected)), "round ", round, ": ",
                  received[round]);
    }
    TORCH_CHECK(comms.tensors(sp::axes::kUlysses)->sent_bytes().at("test") ==
                8 * (4 * (3 - me) + 2 * 6));
    at::Tensor short_buffer = at::empty({2}, at::kDouble);
    bool refused = false;
    try {
      comms.tensors(sp::axes::kUlysses)
          ->start_all_to_all(at::ones({3}, at::kDouble), {1, 1, 1}, short_buffer, {1, 1, 1},
                             "test");
    } catch (const c10::Error&) {
      refused = true;
    }
    TORCH_CHECK(refused);
  });
}

TEST_CASE("rows of uneven counts: gathered, and reduced in rank order whatever the owner") {
  const Run run_ranks = GENERATE(&over_gloo, &in_memory);
  const std::vector<int64_t> rows_of{2, 0, 3};
  const std::vector<int64_t> begin_of{0, 2, 2};
  const at::Tensor whole = at::arange(10, at::kDouble).view({5, 2});
  run_ranks({1, 3, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const int64_t me = mesh.rank();
    const at::Tensor mine = whole.narrow(0, begin_of[me], rows_of[me]);
    TORCH_CHECK(
        at::equal(comms.tensors(sp::axes::kRing)->all_gather_rows(mine, rows_of, "gather"), whole));
    TORCH_CHECK(comms.tensors(sp::axes::kRing)->sent_bytes().at("gather") ==
                2 * rows_of[me] * 2 * 8);

    // 1e16 + 1 rounds back to 1e16: in rank order the sum is 0, in another it may be 1.
    const at::Tensor full =
        at::full({5, 2}, std::vector<double>{1e16, 1, -1e16}[me], at::kDouble) + 0 * whole;
    const at::Tensor sum =
        comms.tensors(sp::axes::kRing)->reduce_scatter_rows(full, rows_of, "scatter");
    TORCH_CHECK(at::equal(sum, at::zeros({rows_of[me], 2}, at::kDouble)), "got ", sum);
    TORCH_CHECK(comms.tensors(sp::axes::kRing)->sent_bytes().at("scatter") ==
                (5 - rows_of[me]) * 2 * 8);
    // bf16 cannot hold 257, so adding 1 twice to 256 in bf16 is lost; in fp32 it is 258.
    const at::Tensor narrow = at::full({5, 2}, me == 0 ? 256.0 : 1.0, at::kBFloat16);
    const at::Tensor wide =
        comms.tensors(sp::axes::kRing)->reduce_scatter_rows(narrow, rows_of, "scatter");
    TORCH_CHECK(at::equal(wide, at::full({rows_of[me], 2}, 258.0, at::kBFloat16)), "got ", wide);
  });
  const auto alone = sp::make_single_rank_communicator();
  CHECK(at::equal(alone->all_gather_rows(whole, {5}, "one"), whole));
  CHECK_THROWS_WITH(alone->all_gather_rows(whole, {4}, "one"), Catch::Contains("passes 4 rows"));
  CHECK_THROWS_WITH(alone->reduce_scatter_rows(whole, {2, 3}, "one"),
                    Catch::Contains("row counts for 2 ranks"));
}

TEST_CASE("what parameter sharding folds in and what is left of sp are disjoint and make up sp") {
  using sp::CpFsdpMode;
  const sp::Mesh mesh({2, 2, 3}, 10);
  const auto folded = [&](CpFsdpMode mode) { return mesh.ranks(sp::axes::fsdp(mode)); };
  CHECK(folded(CpFsdpMode::kAll) == mesh.ranks(sp::axes::kSp));
  CHECK(folded(CpFsdpMode::kUlyssesOnly) == std::vector<int64_t>{9, 10, 11});
  CHECK(folded(CpFsdpMode::kRingOnly) == std::vector<int64_t>{7, 10});
  CHECK(folded(CpFsdpMode::kNone) == std::vector<int64_t>{10});
  for (const auto mode :
       {CpFsdpMode::kAll, CpFsdpMode::kUlyssesOnly, CpFsdpMode::kRingOnly, CpFsdpMode::kNone}) {
    CHECK(mesh.size(sp::axes::fsdp(mode)) * mesh.size(sp::axes::sp_without_fsdp(mode)) ==
          mesh.size(sp::axes::kSp));
    for (const auto axis : {sp::Axis::kRing, sp::Axis::kUlysses}) {
      CHECK(sp::axes::fsdp(mode).contains(axis) != sp::axes::sp_without_fsdp(mode).contains(axis));
    }
  }
}

TEST_CASE("experts' groups cut the ranks of a replica another way") {
  // Two replicas of 12 ranks: 2 shards x ring 2 x ulysses 3, and 3 sets of all experts in each.
  const sp::MeshShape shape{.dp_replicate = 2, .ring = 2, .ulysses = 3, .dp_shard = 2, .expert = 4};
  const sp::Mesh mesh(shape, 12 + 7);
  CHECK(mesh.ranks(sp::axes::kExpert) == std::vector<int64_t>{16, 17, 18, 19});
  CHECK(mesh.coordinate(sp::axes::kExpert) == 3);
  CHECK(mesh.ranks(sp::axes::kExpertShard) == std::vector<int64_t>{15, 19, 23});
  CHECK(mesh.ranks(sp::axes::kSameExperts) == std::vector<int64_t>{3, 7, 11, 15, 19, 23});
  for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
    const sp::Mesh each(shape, rank);
    for (const sp::Axes axes :
         {sp::axes::kExpert, sp::axes::kExpertShard, sp::axes::kSameExperts}) {
      CHECK(static_cast<int64_t>(each.ranks(axes).size()) == each.size(axes));
      CHECK(each.ranks(axes).at(each.coordinate(axes)) == rank);
    }
  }
  CHECK_THROWS_WITH(mesh.size({sp::Axis::kExpert, sp::Axis::kRing}),
                    Catch::Contains("another way"));
  CHECK_THROWS_WITH(sp::Mesh({.ulysses = 4, .expert = 3}, 0),
                    Catch::Contains("3 ranks with all experts do not divide the 4 ranks"));
}

TEST_CASE("sub-meshes of any set of axes: sizes, coordinates and members agree") {
  const sp::MeshShape shape{2, 2, 3};
  const sp::Axes batch_and_ulysses{sp::Axis::kDpReplicate, sp::Axis::kUlysses};
  CHECK(sp::Mesh(shape, 10).ranks(batch_and_ulysses) == std::vector<int64_t>{3, 4, 5, 9, 10, 11});
  for (int64_t rank = 0; rank < 12; ++rank) {
    const sp::Mesh mesh(shape, rank);
    for (const sp::Axes axes :
         {sp::axes::kNone, sp::axes::kRing, sp::axes::kUlysses, sp::axes::kBatch, sp::axes::kSp,
          sp::axes::kLoss, batch_and_ulysses}) {
      CHECK(static_cast<int64_t>(mesh.ranks(axes).size()) == mesh.size(axes));
      CHECK(mesh.ranks(axes).at(mesh.coordinate(axes)) == rank);
    }
  }
}

TEST_CASE("each process group holds the ranks of its sub-mesh, for tensors and for control") {
  test::run_ranks({2, 2, 1}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    for (const auto axes : {sp::axes::kUlysses, sp::axes::kRing, sp::axes::kSp, sp::axes::kBatch,
                            sp::axes::kLoss, sp::axes::kNone}) {
      for (const auto& group : {comms.tensors(axes), comms.control(axes)}) {
        at::Tensor sum = at::full({1}, 1LL << mesh.rank(), at::kLong);
        group->all_reduce_sum(sum, "members");
        int64_t expected = 0;
        for (const int64_t rank : mesh.ranks(axes)) {
          expected += 1LL << rank;
        }
        TORCH_CHECK(sum.item<int64_t>() == expected);
      }
    }
    try {
      comms.tensors({sp::Axis::kDpReplicate, sp::Axis::kUlysses});
      TORCH_CHECK(false, "axes without a group were accepted");
    } catch (const std::invalid_argument&) {
    }
  });
}

TEST_CASE("sp groups across nodes: an error that names them, or a warning") {
  using sp::GroupScope;
  const sp::MeshShape shape{2, 1, 2};
  CHECK(sp::check_group_scope(GroupScope::kLocalNode, shape, {"a", "a", "b", "b"}).empty());
  CHECK(sp::check_group_scope(GroupScope::kGlobal, shape, {"a", "a", "b", "b"}).empty());
  CHECK_THROWS_WITH(sp::check_group_scope(GroupScope::kLocalNode, shape, {"a", "a", "a", "b"}),
                    Catch::Contains("rank 2 on a, rank 3 on b"));
  CHECK_THROWS_AS(sp::check_group_scope(GroupScope::kLocalNode, shape, {"a", "a", "a", "b"}),
                  std::invalid_argument);
  CHECK_THAT(sp::check_group_scope(GroupScope::kGlobal, shape, {"a", "b", "b", "b"}),
             Catch::Contains("rank 0 on a, rank 1 on b"));
  CHECK(sp::check_group_scope(GroupScope::kLocalNode, {4, 1, 1}, {"a", "b", "c", "d"}).empty());
  CHECK_THROWS_WITH(sp::check_group_scope(GroupScope::kGlobal, shape, {"a"}),
                    Catch::Contains("1 node names"));
  CHECK_FALSE(sp::this_node_name().empty());
  test::run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    const std::string mine(1 + 120 * mesh.rank(), static_cast<char>('x' + mesh.rank()));
    const auto names = sp::gather_node_names(mine, *comms.tensors(sp::axes::kLoss));
    TORCH_CHECK(names[0] == "x" && names[1] == std::string(121, 'y') &&
                names[2] == std::string(241, 'z'));
  });
  const auto alone = sp::make_single_rank_communicator();
  CHECK_THROWS_AS(sp::gather_node_names(std::string(256, 'n'), *alone), std::invalid_argument);
}

TEST_CASE("a rank that never comes is a timeout that names the rank, not a hang") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::Mesh mesh({1, 1, 2}, 0);
  CHECK_THROWS_WITH(sp::connect_groups(mesh, store, "127.0.0.1", std::chrono::milliseconds(300)),
                    Catch::Contains("rank 0 waited 300 ms for rank(s) 1 of 2"));
}

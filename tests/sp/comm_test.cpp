// Guards: ranks mapped to the wrong axis, uneven or empty splits in an all-to-all, transfers that
// cross, counters that disagree with what was sent, sums that depend on who adds them, and sp
// groups across nodes unnoticed.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "sp/mesh/group_scope.h"
#include "sp/mesh/process_groups.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace ringside;

namespace {

// Tests hold all kinds of groups to the same results.
using Run = void (*)(sp::MeshShape, const test::RankBody&);

void over_gloo(sp::MeshShape shape, const test::RankBody& body) { test::run_ranks(shape, body); }

void over_shared_memory(sp::MeshShape shape, const test::RankBody& body) {
  test::run_ranks(shape, body, std::chrono::seconds(30), test::fully_sharded_axes(),
                  sp::RankTransport::kSharedMemory);
}

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
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
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
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
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
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
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
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
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

TEST_CASE("messages between two ranks: in order for each pair, empty ones stay, bytes counted") {
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
  run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    using Kind = sp::PointToPoint::Kind;
    sp::Communicator& ranks = *comms.tensors(sp::axes::kUlysses);
    const int64_t me = mesh.rank();
    // Rank 0 sends each of the others three messages, one of them empty, and gets one back. The
    // calls have other messages in them on both ends.
    const auto message = [](int64_t to, int64_t number) {
      return at::full({number == 1 ? 0 : 2, 3 + number}, 10.0 * to + number, at::kFloat);
    };
    if (me == 0) {
      std::vector<sp::PointToPoint> all;
      std::vector<at::Tensor> back;
      for (int64_t number = 0; number < 3; ++number) {
        for (const int64_t to : {2, 1}) {
          all.push_back({Kind::kSend, message(to, number), to});
        }
      }
      for (const int64_t from : {1, 2}) {
        back.push_back(at::full({4}, -1.0, at::kDouble));
        all.push_back({Kind::kReceive, back.back(), from});
      }
      for (const auto& transfer : ranks.start_transfers(all, "messages")) {
        transfer->wait();
      }
      TORCH_CHECK(back[0].equal(at::full({4}, 1.0, at::kDouble)), back[0]);
      TORCH_CHECK(back[1].equal(at::full({4}, 2.0, at::kDouble)), back[1]);
      TORCH_CHECK(ranks.sent_bytes().at("messages") == 2 * 4 * (6 + 10));
      return;
    }
    std::vector<at::Tensor> got;
    std::vector<std::unique_ptr<sp::Transfer>> under_way;
    for (int64_t number = 0; number < 3; ++number) {
      got.push_back(at::full_like(message(me, number), -1.0));
      const sp::PointToPoint one{Kind::kReceive, got.back(), 0};
      under_way.push_back(std::move(ranks.start_transfers({&one, 1}, "messages").front()));
    }
    const sp::PointToPoint answer{Kind::kSend, at::full({4}, static_cast<double>(me), at::kDouble),
                                  0};
    under_way.push_back(std::move(ranks.start_transfers({&answer, 1}, "messages").front()));
    std::reverse(under_way.begin(), under_way.end());
    for (const auto& transfer : under_way) {
      transfer->wait();
    }
    for (int64_t number = 0; number < 3; ++number) {
      TORCH_CHECK(got[number].equal(message(me, number)), "message ", number, ": ", got[number]);
    }
    TORCH_CHECK(ranks.sent_bytes().at("messages") == 32);
    const sp::PointToPoint to_itself{Kind::kSend, at::zeros({1}), me};
    try {
      ranks.start_transfers({&to_itself, 1}, "messages");
      TORCH_CHECK(false, "a message to oneself was accepted");
    } catch (const c10::Error& error) {
      TORCH_CHECK(std::string(error.what()).find("cannot exchange a message") != std::string::npos);
    }
  });
}

TEST_CASE("rows of larger tensors are exchanged in place, whatever their parts") {
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
  run_ranks({1, 1, 3}, [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    sp::Communicator& comm = *comms.tensors(sp::axes::kUlysses);
    const int64_t me = mesh.rank();
    // To rank p: 4 - p rows of 2 + 3 columns of two tensors, from column p on; rank 2 sends nothing
    // to rank 0.
    const at::Tensor a = at::arange(40, at::kDouble).view({4, 10}) + 100.0 * me;
    const at::Tensor b = at::arange(40, at::kDouble).view({4, 10}) + 100.0 * me + 50;
    const auto rows = [](int64_t from, int64_t to) { return from == 2 && to == 0 ? 0 : 4 - to; };
    std::vector<sp::RowParts> send, in_gaps, in_one;
    const at::Tensor wide = at::full({12, 9}, -1.0, at::kDouble);
    const at::Tensor whole =
        at::full({rows(0, me) + rows(1, me) + rows(2, me), 5}, -1.0, at::kDouble);
    int64_t begin = 0;
    for (int64_t p = 0; p < 3; ++p) {
      send.push_back({a.narrow(0, 0, rows(me, p)).narrow(1, p, 2),
                      b.narrow(0, 0, rows(me, p)).narrow(1, p, 3)});
      const at::Tensor place = wide.narrow(0, 4 * p, rows(p, me));
      in_gaps.push_back({place.narrow(1, 5, 2), place.narrow(1, 1, 3)});
      in_one.push_back({whole.narrow(0, begin, rows(p, me))});
      begin += rows(p, me);
    }
    const auto first = comm.start_row_exchange(send, in_gaps, "rows");
    const auto second = comm.start_row_exchange(send, in_one, "rows");
    second->wait();
    first->wait();
    begin = 0;
    for (int64_t p = 0; p < 3; ++p) {
      const int64_t n = rows(p, me);
      const at::Tensor from_a =
          (at::arange(40, at::kDouble).view({4, 10}) + 100.0 * p).narrow(0, 0, n).narrow(1, me, 2);
      const at::Tensor from_b = (at::arange(40, at::kDouble).view({4, 10}) + 100.0 * p + 50)
                                    .narrow(0, 0, n)
                                    .narrow(1, me, 3);
      const at::Tensor place = wide.narrow(0, 4 * p, n);
      TORCH_CHECK(at::equal(place.narrow(1, 5, 2), from_a));
      TORCH_CHECK(at::equal(place.narrow(1, 1, 3), from_b));
      TORCH_CHECK(at::equal(whole.narrow(0, begin, n), at::cat({from_a, from_b}, 1)));
      begin += n;
    }
    TORCH_CHECK((wide.narrow(1, 7, 2) == -1.0).all().item<bool>(), "columns beside the parts");
    int64_t sent = 0;
    for (int64_t p = 0; p < 3; ++p) {
      sent += p == me ? 0 : 2 * rows(me, p) * 5 * 8;
    }
    TORCH_CHECK(comm.sent_bytes().at("rows") == sent);
    bool refused = false;
    try {
      comm.start_row_exchange(send, {{whole.t()}, {}, {}}, "rows");
    } catch (const c10::Error&) {
      refused = true;
    }
    TORCH_CHECK(refused, "a part with gaps in its rows");
  });
  const auto alone = sp::make_single_rank_communicator();
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4}), y = at::zeros({3, 2});
  alone->start_row_exchange({{x.narrow(1, 1, 2)}}, {{y}}, "one")->wait();
  CHECK(at::equal(y, x.narrow(1, 1, 2)));
}

TEST_CASE("rows of uneven counts: gathered, and reduced in rank order whatever the owner") {
  const Run run_ranks = GENERATE(&over_gloo, &over_shared_memory, &in_memory);
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

TEST_CASE("tensor ranks are neighbours, stages are furthest apart") {
  const sp::MeshShape shape{.dp_replicate = 2,
                            .ring = 3,
                            .ulysses = 2,
                            .dp_shard = 2,
                            .expert = 8,
                            .pipeline = 3,
                            .tensor = 2};
  CHECK(shape.world_size() == 144);
  CHECK(shape.stage_size() == 48);
  CHECK(shape.replica_size() == 24);
  // 69 = stage 1, replica 0, shard 1, ring 2, ulysses 0, tensor 1.
  const sp::Mesh mesh(shape, 69);
  CHECK(mesh.coordinate(sp::axes::kPipeline) == 1);
  CHECK(mesh.coordinate(sp::axes::kTensor) == 1);
  CHECK(mesh.dp_rank() == 1);
  CHECK(mesh.ring_rank() == 2);
  CHECK(mesh.ulysses_rank() == 0);
  CHECK(mesh.ranks(sp::axes::kTensor) == std::vector<int64_t>{68, 69});
  CHECK(mesh.ranks(sp::axes::kUlysses) == std::vector<int64_t>{69, 71});
  CHECK(mesh.ranks(sp::axes::kRing) == std::vector<int64_t>{61, 65, 69});
  CHECK(mesh.ranks(sp::axes::kBatch) == std::vector<int64_t>{57, 69, 81, 93});
  CHECK(mesh.ranks(sp::axes::kPipeline) == std::vector<int64_t>{21, 69, 117});
  CHECK(mesh.ranks(sp::axes::kExpert) == std::vector<int64_t>{64, 65, 66, 67, 68, 69, 70, 71});
  CHECK(mesh.ranks(sp::axes::kExpertShard) == std::vector<int64_t>{53, 61, 69});
  CHECK(mesh.ranks(sp::axes::kSameExperts) == std::vector<int64_t>{53, 61, 69, 77, 85, 93});
  CHECK(mesh.size(sp::axes::kWorld) == 144);
  CHECK(mesh.coordinate(sp::axes::kWorld) == 69);
  CHECK(mesh.size(sp::axes::kLoss) == 24);
  CHECK_THROWS_WITH(mesh.size({sp::Axis::kExpert, sp::Axis::kTensor}),
                    Catch::Contains("another way"));
  CHECK_THROWS_WITH(sp::Mesh({.tensor = 0}, 0), Catch::Contains("tensor 0"));
  CHECK_THROWS_WITH(sp::Mesh({.pipeline = -1}, 0), Catch::Contains("pipeline -1"));
}

TEST_CASE("sub-meshes of every set of axes cut the world into parts that agree") {
  const sp::MeshShape shape{.dp_replicate = 2,
                            .ring = 2,
                            .ulysses = 3,
                            .dp_shard = 2,
                            .expert = 6,
                            .pipeline = 2,
                            .tensor = 2};
  const auto check = [&](sp::Axes axes) {
    // Each rank's sub-mesh, found by its members.
    for (int64_t rank = 0; rank < shape.world_size(); ++rank) {
      const sp::Mesh mesh(shape, rank);
      const std::vector<int64_t> ranks = mesh.ranks(axes);
      bool agrees = static_cast<int64_t>(ranks.size()) == mesh.size(axes) &&
                    ranks.at(mesh.coordinate(axes)) == rank &&
                    std::is_sorted(ranks.begin(), ranks.end());
      for (const int64_t member : {ranks.front(), ranks.back()}) {
        agrees = agrees && sp::Mesh(shape, member).ranks(axes) == ranks;
      }
      if (!agrees) {
        FAIL("rank " << rank << " of axes " << sp::group_name(mesh, axes));
      }
    }
  };
  const std::vector<sp::Axis> dense{sp::Axis::kPipeline, sp::Axis::kDpReplicate, sp::Axis::kDpShard,
                                    sp::Axis::kRing,     sp::Axis::kUlysses,     sp::Axis::kTensor};
  const std::vector<sp::Axis> experts{sp::Axis::kPipeline, sp::Axis::kDpReplicate,
                                      sp::Axis::kExpertShard, sp::Axis::kExpert};
  for (const std::vector<sp::Axis>& of : {dense, experts}) {
    for (unsigned set = 0; set < 1u << of.size(); ++set) {
      sp::Axes axes;
      for (std::size_t a = 0; a < of.size(); ++a) {
        axes = (set >> a & 1u) != 0 ? axes.with(of[a]) : axes;
      }
      check(axes);
    }
  }
  SUCCEED();
}

TEST_CASE("losses are summed among the ranks of a stage and a tensor coordinate, votes by all") {
  const sp::MeshShape shape{.ulysses = 2, .pipeline = 2, .tensor = 2};
  test::run_ranks_in_memory(
      shape,
      [](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const auto members = [&](sp::Axes axes) {
          at::Tensor sum = at::full({1}, 1LL << mesh.rank(), at::kLong);
          comms.tensors(axes)->all_reduce_sum(sum, "members");
          return sum.item<int64_t>();
        };
        const int64_t first = mesh.rank() / 4 * 4 + mesh.rank() % 2;
        TORCH_CHECK(members(sp::axes::kWorld) == 255);
        TORCH_CHECK(members(sp::axes::kLoss) == (1LL << first | 1LL << (first + 2)));
        TORCH_CHECK(members(sp::axes::kPipeline) == (17LL << mesh.rank() % 4));
        TORCH_CHECK(members(sp::axes::kTensor) == (3LL << mesh.rank() / 2 * 2));
      },
      {sp::axes::kPipeline, sp::axes::kTensor});
  // Without such ranks there is one group for both, so nothing is connected twice.
  test::run_ranks_in_memory({1, 1, 2}, [](const sp::Mesh&, const sp::ProcessGroups& comms) {
    TORCH_CHECK(comms.tensors(sp::axes::kLoss) == comms.tensors(sp::axes::kWorld));
    TORCH_CHECK(comms.control(sp::axes::kLoss) == comms.control(sp::axes::kWorld));
  });
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

TEST_CASE("sums over shared memory have the bits of Gloo's, whatever the size and dtype") {
  const std::vector<int64_t> sizes{1, 2, 7, 1000, 5001, 70'001, 1'500'003};
  const auto inputs = [&](int64_t rank) {
    at::manual_seed(17 + rank);
    std::vector<at::Tensor> tensors;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
      for (const int64_t size : sizes) {
        if (dtype == at::kFloat || size < 100'000) {
          tensors.push_back((at::randn({size}) * at::randn({size}).exp()).to(dtype));
        }
      }
    }
    return tensors;
  };
  static std::mutex random;  // the generator is the process's
  for (const int64_t ranks : {2, 3, 5, 8}) {
    std::vector<std::vector<at::Tensor>> results(2 * ranks);
    for (const bool shared : {false, true}) {
      (shared ? over_shared_memory : over_gloo)({1, ranks, 1}, [&](const sp::Mesh& mesh,
                                                                   const sp::ProcessGroups& comms) {
        std::vector<at::Tensor> tensors;
        {
          const std::lock_guard lock(random);
          tensors = inputs(mesh.rank());
        }
        std::vector<std::unique_ptr<sp::Transfer>> transfers;
        for (at::Tensor& tensor : tensors) {
          transfers.push_back(comms.tensors(sp::axes::kRing)->start_all_reduce_sum(tensor, "sum"));
        }
        for (const auto& transfer : transfers) {
          transfer->wait();
        }
        at::Tensor most = tensors.front().clone() + mesh.rank();
        comms.tensors(sp::axes::kRing)->all_reduce_max(most, "max");
        tensors.push_back(most);
        results[2 * mesh.rank() + (shared ? 1 : 0)] = tensors;
      });
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        INFO("rank " << rank << " of " << ranks << ", " << results[0][i].scalar_type() << " "
                     << results[0][i].sizes());
        CHECK(at::equal(results[2 * rank][i], results[2 * rank + 1][i]));
      }
    }
  }
}

namespace {

int64_t shared_segments() {
  int64_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const auto target = std::filesystem::read_symlink(file.path(), closed).string();
    count += target.find("ringside-ranks") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Runs four ranks of 2 replicas x Ulysses 2 by a transport; machine_of: "" = this one. Returns what
// rank 0 said, and the number of segments while all groups were connected.
std::pair<std::string, int64_t> run_machines(
    sp::RankTransport transport, const std::function<std::string(int64_t)>& machine_of) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::string said;
  int64_t segments = 0;
  test::run_threads(
      4,
      [&](int64_t rank) {
        const sp::Mesh mesh({2, 1, 2}, rank);
        sp::GroupRendezvous meeting{store, "127.0.0.1", std::chrono::seconds(30), transport};
        meeting.machine = machine_of(rank);
        meeting.report = [&](const std::string& sentence) { said += sentence; };
        const auto groups = sp::connect_groups(mesh, meeting);
        at::Tensor sum = at::ones({1});
        for (const auto axes : {sp::axes::kWorld, sp::axes::kUlysses, sp::axes::kBatch}) {
          groups.tensors(axes)->all_reduce_sum(sum, "sum");
        }
        TORCH_CHECK(sum.item<float>() == 16.0f);
        if (rank == 0) {
          segments = shared_segments();
        }
        groups.tensors(sp::axes::kWorld)->all_reduce_sum(sum, "barrier");
      },
      [] {});
  return {said, segments};
}

}  // namespace

TEST_CASE("ranks of one machine share memory; of two, only within each; said when it is refused") {
  const auto here = [](int64_t) { return std::string(); };
  // Four ranks have an end of each of world, sp, batch and ulysses.
  CHECK(run_machines(sp::RankTransport::kAuto, here) == std::pair(std::string(), int64_t{16}));
  CHECK(run_machines(sp::RankTransport::kGloo, here) == std::pair(std::string(), int64_t{0}));
  const auto two = [](int64_t rank) { return std::string(rank < 2 ? "a" : "b"); };
  CHECK(run_machines(sp::RankTransport::kAuto, two) == std::pair(std::string(), int64_t{8}));
  CHECK_THROWS_WITH(run_machines(sp::RankTransport::kSharedMemory, two),
                    Catch::Contains("cannot use shared memory: its ranks are not processes of one "
                                    "user on one machine; expected the transport auto or gloo"));
  CHECK(shared_segments() == 0);
}

TEST_CASE("where the machine refuses shared memory ranks use Gloo and rank 0 says why") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{4096, limit.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto here = [](int64_t) { return std::string(); };
  const auto [said, segments] = run_machines(sp::RankTransport::kAuto, here);
  std::string refused;
  try {
    run_machines(sp::RankTransport::kSharedMemory, here);
  } catch (const std::exception& error) {
    refused = error.what();
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, before);
  CHECK(segments == 0);
  CHECK_THAT(said,
             Catch::Contains("ranks exchange over Gloo, which is slower than shared memory: ") &&
                 Catch::Contains("rank 0: ") && Catch::Contains("File too large"));
  CHECK(said.find("Gloo") == said.rfind("Gloo"));  // once
  CHECK_THAT(refused,
             Catch::Contains("cannot use shared memory: ") && Catch::Contains("File too large"));
}

TEST_CASE("a rank that never comes is a timeout that names the rank, not a hang") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const sp::Mesh mesh({1, 1, 2}, 0);
  CHECK_THROWS_WITH(sp::connect_groups(mesh, {store, "127.0.0.1", std::chrono::milliseconds(300)}),
                    Catch::Contains("rank 0 waited 300 ms for rank(s) 1 of 2"));
}

// Guards: bytes of one rank that arrive at another changed, late or never; ranks that wait for each
// other in two groups; sums in another order than Gloo's; ranks that die, leave or never come and
// are not named. Torch-free, so that tools/tsan.sh can watch it.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "sp/mesh/shared_memory_group.h"

using namespace ringside;
using namespace std::chrono_literals;

namespace {

// Number of segments that this process has open.
int64_t open_segments() {
  int64_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const auto target = std::filesystem::read_symlink(file.path(), closed).string();
    count += target.find("ringside-ranks") != std::string::npos ? 1 : 0;
  }
  return count;
}

// One rank's end of a group of threads of this process.
std::shared_ptr<sp::SharedMemoryGroup> join(const std::string& address, int64_t me, int64_t ranks,
                                            const std::shared_ptr<sp::RankGroups>& mine,
                                            std::chrono::milliseconds timeout = 20s) {
  std::vector<int64_t> world;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    world.push_back(10 + rank);  // messages name ranks of the world
  }
  auto group = std::make_shared<sp::SharedMemoryGroup>(
      sp::SharedSegment::open(address, sp::SharedMemoryGroup::segment_bytes(ranks)),
      sp::GroupMembers{"test", world, me}, timeout, mine);
  mine->add(group);
  return group;
}

using Groups = std::vector<std::shared_ptr<sp::SharedMemoryGroup>>;
using Body = std::function<void(int64_t me, Groups&)>;

// Runs `body` on each rank, a thread, with its ends of `groups` groups. Returns what each rank
// failed with, or "".
std::vector<std::string> run(int64_t ranks, int64_t groups, const Body& body,
                             std::chrono::milliseconds timeout = 20s) {
  std::vector<std::unique_ptr<sp::SharedSegment>> segments;
  std::vector<Groups> ends(ranks);
  for (int64_t g = 0; g < groups; ++g) {
    segments.push_back(sp::SharedSegment::create(sp::SharedMemoryGroup::segment_bytes(ranks)));
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto mine = std::make_shared<sp::RankGroups>();
    for (const auto& segment : segments) {
      ends[rank].push_back(join(segment->address(), rank, ranks, mine, timeout));
    }
  }
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, ends[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
      ends[rank].clear();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    CHECK(error.empty());
    UNSCOPED_INFO(error);
  }
}

using Buffer = std::vector<std::byte>;

// Bytes that `from` sends `to` in a round, unlike those of any other.
Buffer message(int64_t from, int64_t to, int64_t round, int64_t bytes) {
  Buffer buffer(bytes);
  for (int64_t i = 0; i < bytes; ++i) {
    buffer[i] = static_cast<std::byte>((i * 7 + from * 31 + to * 57 + round * 101 + i / 251) & 255);
  }
  return buffer;
}

// An exchange of one message with every other rank, and its memory.
struct Exchange {
  std::vector<Buffer> sends, receives;
  std::shared_ptr<sp::MessageOperation> operation;

  Exchange(int64_t me, int64_t ranks, int64_t round,
           const std::function<int64_t(int64_t from, int64_t to)>& bytes)
      : sends(ranks),
        receives(ranks),
        operation(
            std::make_shared<sp::MessageOperation>(sp::MessageKind::kAllToAll, ranks, nullptr)) {
    for (int64_t p = 0; p < ranks; ++p) {
      if (p != me) {
        sends[p] = message(me, p, round, bytes(me, p));
        receives[p].resize(bytes(p, me));
        operation->add_send(p, {sends[p].data(), bytes(me, p)});
        operation->add_receive(p, {receives[p].data(), bytes(p, me)});
      }
    }
  }

  void start(sp::SharedMemoryGroup& group) {
    std::vector<int64_t> others;
    for (int64_t p = 0; p < group.members().size(); ++p) {
      if (p != group.members().me) {
        others.push_back(p);
      }
    }
    group.start(operation, others, others);
  }

  // Throws when a byte is wrong.
  void check(int64_t me, int64_t round) const {
    for (int64_t p = 0; p < static_cast<int64_t>(receives.size()); ++p) {
      const auto bytes = static_cast<int64_t>(receives[p].size());
      if (p != me && receives[p] != message(p, me, round, bytes)) {
        throw std::runtime_error("wrong bytes from " + std::to_string(p));
      }
    }
  }
};

}  // namespace

TEST_CASE("a ring gives the bytes out that went in, whatever the pieces") {
  sp::RingCounters counters{};
  std::array<std::byte, 64> memory{};
  const Buffer sent = message(0, 1, 0, 100'000);
  Buffer got(sent.size());
  std::thread sender([&] {
    sp::ByteRing ring(counters, memory.data(), 64);
    std::minstd_rand random(1);
    for (std::size_t at = 0; at < sent.size();) {
      const auto piece = std::min<std::size_t>(1 + random() % 100, sent.size() - at);
      at += ring.push(sent.data() + at, static_cast<int64_t>(piece));
    }
  });
  sp::ByteRing ring(counters, memory.data(), 64);
  std::minstd_rand random(2);
  for (std::size_t at = 0; at < got.size();) {
    const auto piece = std::min<std::size_t>(1 + random() % 100, got.size() - at);
    at += ring.pull(got.data() + at, static_cast<int64_t>(piece));
  }
  sender.join();
  CHECK(got == sent);
  CHECK(ring.moved() == 100'000);
}

TEST_CASE("messages of no, odd and more bytes than a ring holds, among 2 to 8 ranks") {
  const int64_t before = open_segments();
  for (const int64_t ranks : {2, 3, 5, 8}) {
    // The largest fills a ring of two ranks (4 MiB) more than once.
    const std::array<int64_t, 5> sizes{0, 1, 4097, 65'535, ranks == 2 ? 9'000'001 : 1'500'001};
    expect_none(run(ranks, 1, [&](int64_t me, Groups& groups) {
      std::vector<Exchange> exchanges;
      for (int64_t round = 0; round < 5; ++round) {
        exchanges.emplace_back(me, ranks, round, [&](int64_t from, int64_t to) {
          return sizes[(from + 2 * to + round) % 5];
        });
      }
      for (Exchange& exchange : exchanges) {
        exchange.start(*groups[0]);
      }
      for (const int64_t round : {3, 4, 0, 1, 2}) {
        groups[0]->wait(*exchanges[round].operation);
        exchanges[round].check(me, round);
      }
    }));
  }
  CHECK(open_segments() == before);
}

TEST_CASE("rows with gaps are read and written at any place, and copied from layout to layout") {
  const Buffer memory = message(0, 1, 0, 4000);
  Buffer source = memory;
  // Rows of 5 + 0 + 8 bytes, 30 and 50 bytes apart.
  const sp::RowBytes rows(20,
                          {{source.data(), 30, 5}, {nullptr, 0, 0}, {source.data() + 900, 50, 8}});
  REQUIRE(rows.bytes() == 20 * 13);
  Buffer packed;
  for (int64_t row = 0; row < 20; ++row) {
    for (int64_t i = 0; i < 13; ++i) {
      packed.push_back(i < 5 ? memory[row * 30 + i] : memory[900 + row * 50 + i - 5]);
    }
  }
  std::minstd_rand random(3);
  for (int again = 0; again < 50; ++again) {
    const auto begin = static_cast<int64_t>(random() % 260);
    const auto count = static_cast<int64_t>(random() % (261 - begin));
    Buffer got(count);
    rows.read(begin, count, got.data());
    CHECK(std::equal(got.begin(), got.end(), packed.begin() + begin));
    Buffer target(4000);
    const sp::RowBytes into(10, {{target.data(), 300, 26}});
    REQUIRE(into.bytes() == rows.bytes());
    into.write(begin, count, got.data());
    Buffer back(count);
    into.read(begin, count, back.data());
    CHECK(back == got);
  }
  Buffer target(4000), all(260);
  const sp::RowBytes into(10, {{target.data(), 300, 26}});
  sp::copy_rows(rows, into);
  into.read(0, 260, all.data());
  CHECK(all == packed);
  CHECK(target[26] == std::byte{0});  // between rows
  Buffer dense(260);
  sp::copy_rows(rows, {dense.data(), 260});
  CHECK(dense == packed);
  Buffer again(4000);
  sp::copy_rows({dense.data(), 260}, {10, {{again.data(), 300, 26}}});
  CHECK(again == target);
}

TEST_CASE("ranks that wait in different groups do not hold each other up") {
  // Each message is larger than its ring, so a rank must send in one group while it waits in the
  // other.
  const auto begin = std::chrono::steady_clock::now();
  expect_none(run(2, 2, [](int64_t me, Groups& groups) {
    std::vector<Exchange> exchanges;
    for (int64_t g = 0; g < 2; ++g) {
      exchanges.emplace_back(me, 2, g, [](int64_t, int64_t) { return 6'000'000; });
      exchanges.back().start(*groups[g]);
    }
    for (const int64_t g : {me, 1 - me}) {
      groups[g]->wait(*exchanges[g].operation);
      exchanges[g].check(me, g);
    }
  }));
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("an all-reduce sums in the order of a ring, for one element and for many") {
  // In doubles 1e16 + 1 is 1e16, so that each order of these has another sum.
  for (const int64_t ranks : {2, 3, 8}) {
    for (const int64_t elements : {1, 7, 2000, 70'001}) {
      const auto input = [&](int64_t rank, int64_t i) {
        return std::array<double, 4>{1e16, 3, -1e16, 1 + 1e-9}[(rank * 3 + i) % 4];
      };
      expect_none(run(ranks, 1, [&](int64_t me, Groups& groups) {
        std::vector<double> values(elements);
        for (int64_t i = 0; i < elements; ++i) {
          values[i] = input(me, i);
        }
        const sp::ReductionInput work{reinterpret_cast<std::byte*>(values.data()), elements, 8};
        const auto add = [](std::byte* out, const std::byte* a, const std::byte* b, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            double x = 0, y = 0;
            std::memcpy(&x, a + 8 * i, 8);
            std::memcpy(&y, b + 8 * i, 8);
            x += y;
            std::memcpy(out + 8 * i, &x, 8);
          }
        };
        std::vector<int64_t> others;
        for (int64_t p = 0; p < ranks; ++p) {
          if (p != me) {
            others.push_back(p);
          }
        }
        const auto operation =
            std::make_shared<sp::ReductionOperation>(work, me, ranks, add, nullptr);
        groups[0]->start(operation, others, others);
        groups[0]->wait(*operation);
        for (int64_t part = 0; part < ranks; ++part) {
          const auto [begin, end] = sp::reduction_part(work, part, ranks);
          for (int64_t i = begin; i < end; ++i) {
            double sum = input((part + ranks - 1) % ranks, i);
            for (int64_t step = 2; step <= ranks; ++step) {
              sum += input((part + 2 * ranks - step) % ranks, i);
            }
            if (sum != values[i]) {
              throw std::runtime_error("element " + std::to_string(i));
            }
          }
        }
      }));
    }
  }
}

TEST_CASE("a message that another rank does not expect is named, with what was expected") {
  const auto errors = run(2, 1, [](int64_t me, Groups& groups) {
    Exchange exchange(me, 2, 0, [](int64_t, int64_t) { return 16; });
    if (me == 1) {  // expects more than it gets
      exchange.receives[0].resize(24);
      exchange.operation->add_receive(0, {exchange.receives[0].data(), 24});
    }
    exchange.start(*groups[0]);
    groups[0]->wait(*exchange.operation);
  });
  CHECK_THAT(errors[1],
             Catch::Contains("group test: rank 11: rank 10 sent: all-to-all of 16 bytes; "
                             "expected: all-to-all of 24 bytes"));
}

TEST_CASE(
    "a rank that does not take part is a timeout that names it; every later call repeats it") {
  const auto errors = run(
      3, 1,
      [](int64_t me, Groups& groups) {
        if (me == 2) {
          std::this_thread::sleep_for(1s);
          return;
        }
        Exchange exchange(me, 3, 0, [](int64_t, int64_t) { return 16; });
        exchange.start(*groups[0]);
        std::string first;
        try {
          groups[0]->wait(*exchange.operation);
        } catch (const std::exception& error) {
          first = error.what();
        }
        try {
          exchange.start(*groups[0]);
        } catch (const std::exception& error) {
          throw std::runtime_error(error.what() == first ? first : "another error");
        }
      },
      300ms);
  // The first to give up tells the other at once.
  CHECK_THAT(errors[0] + errors[1], Catch::Contains("waited 300 ms for rank(s) 12 (all-to-all)"));
  CHECK(errors[0].find("another error") == std::string::npos);
  CHECK(errors[2].empty());
}

TEST_CASE("a rank that leaves is named soon; what it has sent arrives") {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run(2, 1, [](int64_t me, Groups& groups) {
    Exchange exchange(me, 2, 0, [](int64_t, int64_t) { return 1000; });
    exchange.start(*groups[0]);
    if (me == 1) {
      return;
    }
    std::this_thread::sleep_for(100ms);
    groups[0]->wait(*exchange.operation);
    exchange.check(me, 0);
    Exchange next(me, 2, 1, [](int64_t, int64_t) { return 1000; });
    next.start(*groups[0]);
    groups[0]->wait(*next.operation);
  });
  CHECK_THAT(errors[0],
             Catch::Contains("rank 10: rank(s) 11 ended during a collective (all-to-all)"));
  CHECK(std::chrono::steady_clock::now() - begin < 2s);
}

TEST_CASE("a process that is killed is named soon, and its memory is gone with the last user") {
  const int64_t bytes = sp::SharedMemoryGroup::segment_bytes(2);
  const int64_t before = open_segments();
  {
    const auto segment = sp::SharedSegment::create(bytes);
    std::array<int, 2> ready{};
    REQUIRE(pipe(ready.data()) == 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto group = join(segment->address(), 1, 2, std::make_shared<sp::RankGroups>());
      const char byte = 1;
      const bool told = write(ready[1], &byte, 1) == 1;
      pause();
      _exit(told ? 0 : 1);
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    const auto group = join(segment->address(), 0, 2, std::make_shared<sp::RankGroups>());
    Exchange exchange(0, 2, 0, [](int64_t, int64_t) { return 1000; });
    exchange.start(*group);
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(kill(child, SIGKILL) == 0);
    CHECK_THROWS_WITH(group->wait(*exchange.operation),
                      Catch::Contains("rank(s) 11 ended during a collective"));
    CHECK(std::chrono::steady_clock::now() - begin < 2s);  // and nobody has reaped the child yet
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    close(ready[0]);
    close(ready[1]);
  }
  CHECK(open_segments() == before);
}

TEST_CASE("a place is taken once; a segment of another size or address is refused") {
  const auto segment = sp::SharedSegment::create(8192);
  const auto other = sp::SharedSegment::open(segment->address(), 8192);
  segment->occupy(3);
  CHECK(other->occupied_by_other(3));
  CHECK_FALSE(segment->occupied_by_other(3));
  CHECK_FALSE(other->occupied_by_other(2));
  CHECK_THROWS_WITH(other->occupy(3), Catch::Contains("cannot take place 3"));
  CHECK_THROWS_WITH(sp::SharedSegment::open(segment->address(), 4096),
                    Catch::Contains("has 8192 bytes, expected 4096"));
  CHECK_THROWS_WITH(sp::SharedSegment::open("elsewhere", 4096), Catch::Contains("'elsewhere'"));
  CHECK_THROWS_AS(sp::SharedSegment::open("/proc/self/fd/9999", 4096), std::system_error);
  CHECK_FALSE(sp::machine_place().empty());
}

TEST_CASE("a rank that waits does not keep a core busy") {
  expect_none(run(2, 1, [](int64_t me, Groups& groups) {
    Exchange exchange(me, 2, 0, [](int64_t, int64_t) { return 16; });
    if (me == 1) {
      std::this_thread::sleep_for(500ms);
      exchange.start(*groups[0]);
      groups[0]->wait(*exchange.operation);
      return;
    }
    exchange.start(*groups[0]);
    const auto cpu_time = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    };
    const auto before = cpu_time();
    groups[0]->wait(*exchange.operation);
    if (cpu_time() - before > 100ms) {
      throw std::runtime_error("the wait used the core");
    }
  }));
}

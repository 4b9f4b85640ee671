// Guards: a store that grows without bound, drops what was just used, keeps an image twice, serves
// another image for a key, or breaks under threads. Oracle: a list in the order of use.
#include "engine/images/image_store.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace ringside::engine;

namespace {

// An image of 3 x `pixels` bytes that says its number.
ProcessedImage image_of(int number, int64_t pixels) {
  ProcessedImage image;
  image.image = {1, pixels, std::vector<uint8_t>(3 * pixels, static_cast<uint8_t>(number))};
  image.grid = {1, 2, 2 * (number + 1)};
  return image;
}

ImageStore::Image add(ImageStore& store, int number, int64_t pixels) {
  return store.add("hash " + std::to_string(number), image_of(number, pixels));
}

}  // namespace

TEST_CASE("an image is found by its content, kept once, and outlives the store's memory") {
  ImageStore store(30);
  const auto first = add(store, 1, 5);
  CHECK(first->grid == PatchGrid{1, 2, 4});
  CHECK(add(store, 1, 5) == first);
  CHECK(store.find("hash 1") == first);
  CHECK(store.find("hash 2") == nullptr);
  CHECK(store.bytes() == 15);
  CHECK(store.size() == 1);
  add(store, 2, 10);
  CHECK(store.find("hash 1") == nullptr);
  CHECK(first->image.rgb == std::vector<uint8_t>(15, 1));
}

TEST_CASE("an image above the bound is returned and not kept, and drops nothing") {
  ImageStore store(30);
  add(store, 1, 5);
  CHECK(add(store, 2, 11)->image.width == 11);
  CHECK(store.find("hash 2") == nullptr);
  CHECK(store.find("hash 1") != nullptr);
  CHECK(store.bytes() == 15);
  ImageStore none(0);
  CHECK(add(none, 1, 1) != nullptr);
  CHECK(none.size() == 0);
  CHECK_THROWS_AS(ImageStore(-1), std::invalid_argument);
}

TEST_CASE("an image is made once while it is kept, and a failure keeps nothing") {
  ImageStore store(100);
  int made = 0;
  const auto make = [&] {
    ++made;
    return image_of(4, 2);
  };
  const auto image = store.find_or_make("a file", make);
  CHECK(store.find_or_make("a file", make) == image);
  CHECK(made == 1);
  CHECK(store.find_or_make("another file", make) != image);
  CHECK(store.size() == 2);
  const auto fail = []() -> ProcessedImage { throw std::runtime_error("it is gone"); };
  CHECK_THROWS_WITH(store.find_or_make("a third", fail), "it is gone");
  CHECK(store.size() == 2);
}

TEST_CASE("the images used longest ago are dropped first") {
  std::mt19937 rng(3);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  ImageStore store(60);
  std::vector<int> used;  // the one used last at the back
  const auto pixels_of = [](int number) { return 1 + number % 7; };
  for (int round = 0; round < 3000; ++round) {
    const int number = draw(0, 15);
    const auto kept = std::ranges::find(used, number);
    const bool is_kept = kept != used.end();
    if (is_kept) {
      used.erase(kept);
      used.push_back(number);
    }
    if (draw(0, 1) == 0) {
      REQUIRE((store.find("hash " + std::to_string(number)) != nullptr) == is_kept);
    } else {
      REQUIRE(add(store, number, pixels_of(number))->image.rgb[0] == number);
      if (!is_kept) {
        used.push_back(number);
      }
    }
    const auto bytes = [&] {
      int64_t sum = 0;
      for (const int one : used) {
        sum += 3 * pixels_of(one);
      }
      return sum;
    };
    while (bytes() > 60) {
      used.erase(used.begin());
    }
    REQUIRE(store.bytes() == bytes());
    REQUIRE(store.size() == std::ssize(used));
  }
}

TEST_CASE("threads get the images that they ask for, within the bound") {
  ImageStore store(45);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const int number = (i * 7 + t) % 9;
        const auto image = store.find_or_make("hash " + std::to_string(number),
                                              [&] { return image_of(number, 5); });
        wrong += image->image.rgb != std::vector<uint8_t>(15, static_cast<uint8_t>(number)) ? 1 : 0;
        wrong += store.bytes() > 45 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
  CHECK(store.size() == 3);
}

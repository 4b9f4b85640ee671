// Pages of a cache: which page holds which tokens of a row. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ringside::engine {

// Tokens in a page.
inline constexpr int64_t kPageTokens = 16;

// Pages that hold `tokens` tokens.
inline int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Numbers of pages, counted by their users. Thread safety: none.
class PagePool {
 public:
  // A page with one user: one that was given back, or else a new one.
  int32_t take();
  // Counts one more user of a page.
  void share(int32_t page) { ++users_.at(page); }
  // Counts one less; a page without users is taken again.
  void give_back(int32_t page);

  // Whether it has several users.
  bool is_shared(int32_t page) const { return users_.at(page) > 1; }
  // Pages taken at some time: all numbers are below this.
  int64_t size() const { return static_cast<int64_t>(users_.size()); }
  int64_t in_use() const { return size() - static_cast<int64_t>(free_.size()); }

 private:
  std::vector<int32_t> users_;
  std::vector<int32_t> free_;
};

// The pages of one row, in the order of its tokens; of a layer with a window, only those that the
// next token can see. A copy shares the pages; a page that several rows share is never written.
class PageList {
 public:
  // window: as BlockSpec::window, 0 = none.
  PageList(std::shared_ptr<PagePool> pool, int64_t window)
      : pool_(std::move(pool)), window_(window) {}
  PageList(const PageList& other);
  PageList& operator=(const PageList&) = delete;
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  ~PageList();

  // A page whose tokens are to be copied, because a row goes on in it that shares it.
  struct Copy {
    int32_t from, to;
  };

  // Makes place for the first tokens of a row, and keeps what the window of the next one reaches.
  void start(int64_t tokens);
  // Makes place for one more token, and gives back what is behind its window. Adds to `copies` the
  // page that it had to part from.
  void append(std::vector<Copy>& copies);
  // Whether append() takes a page.
  bool needs_page() const;

  int64_t tokens() const { return tokens_; }  // of the row
  int64_t first() const { return first_; }    // token in the first page's first place
  const std::vector<int32_t>& pages() const { return pages_; }
  // Places of the first page, counted from first(), that the last token does not see.
  int64_t hidden() const;

 private:
  void release();
  int64_t first_seen() const { return window_ > 0 && tokens_ > window_ ? tokens_ - window_ : 0; }

  std::shared_ptr<PagePool> pool_;
  int64_t window_;
  int64_t tokens_ = 0;
  int64_t first_ = 0;
  std::vector<int32_t> pages_;
};

}  // namespace ringside::engine

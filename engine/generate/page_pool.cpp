#include "engine/generate/page_pool.h"

#include <utility>

namespace ringside::engine {

int32_t PagePool::take() {
  if (free_.empty()) {
    users_.push_back(1);
    return static_cast<int32_t>(users_.size()) - 1;
  }
  const int32_t page = free_.back();
  free_.pop_back();
  users_[page] = 1;
  return page;
}

void PagePool::give_back(int32_t page) {
  if (--users_.at(page) == 0) {
    free_.push_back(page);
  }
}

PageList::PageList(const PageList& other)
    : pool_(other.pool_),
      window_(other.window_),
      tokens_(other.tokens_),
      first_(other.first_),
      pages_(other.pages_) {
  for (const int32_t page : pages_) {
    pool_->share(page);
  }
}

PageList::PageList(PageList&& other) noexcept
    : pool_(other.pool_),
      window_(other.window_),
      tokens_(other.tokens_),
      first_(other.first_),
      pages_(std::exchange(other.pages_, {})) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = other.pool_;
    window_ = other.window_;
    tokens_ = other.tokens_;
    first_ = other.first_;
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

PageList::~PageList() { release(); }

void PageList::release() {
  for (const int32_t page : pages_) {
    pool_->give_back(page);
  }
  pages_.clear();
}

void PageList::start(int64_t tokens) {
  tokens_ = tokens;
  first_ = first_seen() / kPageTokens * kPageTokens;
  for (int64_t page = 0; page < pages_of(tokens - first_); ++page) {
    pages_.push_back(pool_->take());
  }
}

bool PageList::needs_page() const {
  return (tokens_ - first_) % kPageTokens == 0 || pool_->is_shared(pages_.back());
}

void PageList::append(std::vector<Copy>& copies) {
  if ((tokens_ - first_) % kPageTokens == 0) {
    pages_.push_back(pool_->take());
  } else if (pool_->is_shared(pages_.back())) {
    const int32_t shared = std::exchange(pages_.back(), pool_->take());
    copies.push_back({shared, pages_.back()});
    pool_->give_back(shared);
  }
  ++tokens_;
  while (first_ + kPageTokens <= first_seen()) {
    pool_->give_back(pages_.front());
    pages_.erase(pages_.begin());
    first_ += kPageTokens;
  }
}

int64_t PageList::hidden() const { return first_seen() - first_; }

}  // namespace ringside::engine

// A run of whole pages: handles and tokens in one allocation, with some room at either end.
//
// Joining and splitting cost what the smaller side is long: the larger keeps its memory. Room beyond a quarter of the
// run is given back, so that a tree cut into pieces does not hold on to what it was.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace kvroute::radix {

// Pages that lie somewhere else: `handles.size()` pages, `page_bytes` token bytes each.
struct PageView {
  std::span<const std::int64_t> handles;
  const std::uint8_t* tokens = nullptr;

  std::uint32_t size() const { return static_cast<std::uint32_t>(handles.size()); }
  PageView part(std::size_t page_bytes, std::size_t first, std::size_t count) const {
    return {handles.subspan(first, count), tokens + first * page_bytes};
  }
};

class PageRun {
 public:
  std::uint32_t size() const { return size_; }
  std::int64_t handle(std::uint32_t index) const { return handles()[index]; }
  void set_handle(std::uint32_t index, std::int64_t handle) { own_handles()[index] = handle; }
  const std::int64_t* handles() const { return reinterpret_cast<const std::int64_t*>(block_.get()) + front_; }
  const std::uint8_t* tokens(std::size_t page_bytes) const {
    return block_.get() + std::size_t{capacity_} * sizeof(std::int64_t) + front_ * page_bytes;
  }
  PageView view(std::size_t page_bytes) const { return {{handles(), size_}, tokens(page_bytes)}; }
  std::size_t capacity() const { return capacity_; }

  // `pages` must not lie in this run.
  void append(std::size_t page_bytes, PageView pages);
  void prepend(std::size_t page_bytes, PageView pages);
  void drop_front(std::size_t page_bytes, std::uint32_t count);
  void drop_back(std::size_t page_bytes, std::uint32_t count);

 private:
  std::int64_t* own_handles() { return reinterpret_cast<std::int64_t*>(block_.get()) + front_; }
  std::uint8_t* own_tokens(std::size_t page_bytes) {
    return block_.get() + std::size_t{capacity_} * sizeof(std::int64_t) + front_ * page_bytes;
  }
  void put(std::size_t page_bytes, std::uint32_t index, PageView pages);
  void move_to(std::size_t page_bytes, std::uint32_t capacity, std::uint32_t front);
  void give_back(std::size_t page_bytes);

  std::unique_ptr<std::uint8_t[]> block_;
  std::uint32_t capacity_ = 0;
  std::uint32_t front_ = 0;
  std::uint32_t size_ = 0;
};

// How many leading pages of two sequences of `pages` pages are equal.
std::uint32_t shared_pages(const std::uint8_t* left, const std::uint8_t* right, std::size_t pages,
                           std::size_t page_bytes);

// How many leading handles of two equally long sequences are equal.
std::uint32_t shared_handles(std::span<const std::int64_t> left, std::span<const std::int64_t> right);

}  // namespace kvroute::radix

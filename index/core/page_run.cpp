#include "core/page_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvroute::radix {
namespace {

constexpr std::uint32_t kSlack = 8;     // pages of room that are never given back
constexpr std::size_t kStride = 1024;   // bytes compared at once while looking for a difference

// Of a run that was lengthened once: an eighth of it in reserve, since it is often lengthened again.
std::uint32_t with_reserve(std::uint32_t size) { return size + size / 8; }

std::size_t equal_bytes(const std::uint8_t* left, const std::uint8_t* right, std::size_t count) {
  if (std::memcmp(left, right, count) == 0) return count;
  std::size_t at = 0;
  while (count - at > kStride && std::memcmp(left + at, right + at, kStride) == 0) at += kStride;
  return static_cast<std::size_t>(std::mismatch(left + at, left + count, right + at).first - left);
}

}  // namespace

void PageRun::append(std::size_t page_bytes, PageView pages) {
  const std::uint32_t total = size_ + pages.size();
  if (front_ + total > capacity_) move_to(page_bytes, size_ ? with_reserve(total) : total, 0);
  put(page_bytes, size_, pages);
  size_ = total;
}

void PageRun::prepend(std::size_t page_bytes, PageView pages) {
  const std::uint32_t total = size_ + pages.size();
  if (front_ < pages.size()) {
    const std::uint32_t capacity = with_reserve(total);
    move_to(page_bytes, capacity, capacity - size_);
  }
  front_ -= pages.size();
  put(page_bytes, 0, pages);
  size_ = total;
}

void PageRun::drop_front(std::size_t page_bytes, std::uint32_t count) {
  front_ += count;
  size_ -= count;
  give_back(page_bytes);
}

void PageRun::drop_back(std::size_t page_bytes, std::uint32_t count) {
  size_ -= count;
  give_back(page_bytes);
}

void PageRun::put(std::size_t page_bytes, std::uint32_t index, PageView pages) {
  std::memcpy(own_handles() + index, pages.handles.data(), pages.handles.size_bytes());
  std::memcpy(own_tokens(page_bytes) + index * page_bytes, pages.tokens, pages.size() * page_bytes);
}

void PageRun::move_to(std::size_t page_bytes, std::uint32_t capacity, std::uint32_t front) {
  PageRun moved;
  moved.block_.reset(new std::uint8_t[capacity * (sizeof(std::int64_t) + page_bytes)]);
  moved.capacity_ = capacity;
  moved.front_ = front;
  if (size_) moved.put(page_bytes, 0, view(page_bytes));
  moved.size_ = size_;
  *this = std::move(moved);
}

void PageRun::give_back(std::size_t page_bytes) {
  if (capacity_ - size_ > size_ / 4 + kSlack) move_to(page_bytes, size_, 0);
}

std::uint32_t shared_pages(const std::uint8_t* left, const std::uint8_t* right, std::size_t pages,
                           std::size_t page_bytes) {
  return static_cast<std::uint32_t>(equal_bytes(left, right, pages * page_bytes) / page_bytes);
}

std::uint32_t shared_handles(std::span<const std::int64_t> left, std::span<const std::int64_t> right) {
  return static_cast<std::uint32_t>(std::mismatch(left.begin(), left.end(), right.begin()).first - left.begin());
}

}  // namespace kvroute::radix

#include "core/holder_bits.h"

#include <algorithm>
#include <bit>

namespace kvroute {

void Bits::set(std::uint32_t number) {
  if (number / 64 >= words_.size()) words_.resize(number / 64 + 1);
  words_[number / 64] |= 1ull << (number % 64);
}

void Bits::reset(std::uint32_t number) {
  if (number / 64 < words_.size()) words_[number / 64] &= ~(1ull << (number % 64));
}

bool Bits::test(std::uint32_t number) const { return word(number / 64) >> (number % 64) & 1; }

bool Bits::any() const {
  return std::any_of(words_.begin(), words_.end(), [](std::uint64_t one) { return one != 0; });
}

bool Bits::is_only(std::uint32_t number) const {
  for (std::size_t at = 0; at < words_.size(); ++at) {
    if (words_[at] != (at == number / 64 ? 1ull << (number % 64) : 0)) return false;
  }
  return number / 64 < words_.size();
}

std::uint64_t HolderBits::widened(std::uint64_t cell) {
  std::uint64_t wide = 0;
  for (; cell != 0; cell &= cell - 1) wide = with(wide, static_cast<std::uint32_t>(std::countr_zero(cell)));
  return wide;
}

void HolderBits::make_room(std::uint32_t number) {
  if (number / 64 < words_) return;
  const std::size_t words = std::max<std::size_t>(words_ * 2, number / 64 + 1);
  std::vector<std::uint64_t> roomier(sets_.size() / words_ * words);
  for (std::size_t at = 0; at < sets_.size() / words_; ++at) {
    std::copy_n(&sets_[at * words_], words_, &roomier[at * words]);
  }
  sets_ = std::move(roomier);
  words_ = words;
}

bool HolderBits::has(std::uint64_t cell, std::uint32_t number) const {
  if (!wide_) return cell >> number & 1;
  if (cell & kSet) return set_of(cell)[number / 64] >> (number % 64) & 1;
  for (; cell != 0; cell >>= kField) {
    if ((cell & kFieldMask) == number + 1) return true;
  }
  return false;
}

bool HolderBits::meets(std::uint64_t cell, const Bits& workers) const {
  if (!wide_) return (cell & workers.word(0)) != 0;
  if (cell & kSet) {
    const std::uint64_t* set = set_of(cell);
    for (std::size_t at = 0; at < words_; ++at) {
      if (set[at] & workers.word(at)) return true;
    }
    return false;
  }
  for (; cell != 0; cell >>= kField) {
    if (workers.test(static_cast<std::uint32_t>(cell & kFieldMask) - 1)) return true;
  }
  return false;
}

std::uint64_t HolderBits::with(std::uint64_t cell, std::uint32_t number) {
  if (!wide_) return cell | 1ull << number;
  if (has(cell, number)) return cell;
  if (!(cell & kSet)) {
    if (cell >> (2 * kField) == 0) return cell << kField | (number + 1);
    const std::uint64_t set = new_set();
    for (; cell != 0; cell >>= kField) {
      const auto held = static_cast<std::uint32_t>(cell & kFieldMask) - 1;
      set_of(set)[held / 64] |= 1ull << (held % 64);
    }
    cell = set;
  }
  set_of(cell)[number / 64] |= 1ull << (number % 64);
  return cell;
}

std::uint64_t HolderBits::without(std::uint64_t cell, std::uint32_t number) {
  if (!wide_) return cell & ~(1ull << number);
  if (cell & kSet) {
    set_of(cell)[number / 64] &= ~(1ull << (number % 64));
    return narrowed_again(cell);
  }
  std::uint64_t rest = 0;
  for (; cell != 0; cell >>= kField) {
    if ((cell & kFieldMask) != number + 1) rest = rest << kField | (cell & kFieldMask);
  }
  return rest;
}

// A bitset of no more than two workers goes back into the slot. (Not at three, or two calls could undo each other.)
std::uint64_t HolderBits::narrowed_again(std::uint64_t cell) {
  std::uint64_t* set = set_of(cell);
  int count = 0;
  for (std::size_t at = 0; at < words_; ++at) count += std::popcount(set[at]);
  if (count > 2) return cell;
  std::uint64_t rest = 0;
  for (std::size_t at = 0; at < words_; ++at) {
    for (; set[at] != 0; set[at] &= set[at] - 1) {
      rest = rest << kField | (at * 64 + static_cast<std::size_t>(std::countr_zero(set[at])) + 1);
    }
  }
  free_.push_back(cell & ~kSet);
  return rest;
}

void HolderBits::among(std::uint64_t cell, const std::vector<std::uint64_t>& alive,
                       std::vector<std::uint64_t>& here) const {
  if (!wide_) {
    here[0] = cell & alive[0];
    return;
  }
  if (cell & kSet) {
    const std::uint64_t* set = set_of(cell);
    for (std::size_t at = 0; at < here.size(); ++at) here[at] = at < words_ ? set[at] & alive[at] : 0;
    return;
  }
  std::fill(here.begin(), here.end(), 0);
  for (; cell != 0; cell >>= kField) {
    const auto number = static_cast<std::uint32_t>(cell & kFieldMask) - 1;
    if (number / 64 < here.size()) here[number / 64] |= alive[number / 64] & 1ull << (number % 64);
  }
}

std::uint64_t HolderBits::new_set() {
  if (!free_.empty()) {
    const std::uint64_t at = free_.back();
    free_.pop_back();
    return at | kSet;
  }
  sets_.resize(sets_.size() + words_);
  return (sets_.size() / words_ - 1) | kSet;
}

void HolderBits::forget_sets() {
  sets_ = {};
  free_ = {};
}

}  // namespace kvroute

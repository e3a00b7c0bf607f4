// Which of a pool's workers hold a request key, in the 64 bits of a table's slot; 0: none.
//
// Narrow form, while every worker's number is below 64: one bit each. Wide form beyond: up to three workers' numbers in
// the slot itself, more of them as a bitset of the pool's width in an array beside.
#pragma once

#include <cstdint>
#include <vector>

namespace kvroute {

// A set of workers by number, of any length.
class Bits {
 public:
  void set(std::uint32_t number);
  void reset(std::uint32_t number);
  bool test(std::uint32_t number) const;
  bool any() const;
  bool is_only(std::uint32_t number) const;
  std::uint64_t word(std::size_t at) const { return at < words_.size() ? words_[at] : 0; }
  std::vector<std::uint64_t>& words() { return words_; }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

class HolderBits {
 public:
  static constexpr std::uint32_t kMostWorkers = (1u << 21) - 2;

  bool wide() const { return wide_; }

  // Whether a worker of this number needs the wide form, in which cells are not written yet.
  bool must_widen(std::uint32_t number) const { return !wide_ && number >= 64; }

  // Goes over to the wide form; every cell that exists must then be put through `widened` once.
  void widen() { wide_ = true; }
  std::uint64_t widened(std::uint64_t cell);

  // Room for a worker of this number.
  void make_room(std::uint32_t number);

  bool has(std::uint64_t cell, std::uint32_t number) const;
  bool meets(std::uint64_t cell, const Bits& workers) const;
  [[nodiscard]] std::uint64_t with(std::uint64_t cell, std::uint32_t number);
  [[nodiscard]] std::uint64_t without(std::uint64_t cell, std::uint32_t number);

  // The holders among `alive`, as words; both of the same number of words.
  void among(std::uint64_t cell, const std::vector<std::uint64_t>& alive, std::vector<std::uint64_t>& here) const;

  std::size_t size_bytes() const { return sets_.capacity() * sizeof(std::uint64_t); }
  void forget_sets();

 private:
  static constexpr std::uint64_t kSet = 1ull << 63;
  static constexpr int kField = 21;
  static constexpr std::uint64_t kFieldMask = (1ull << kField) - 1;

  std::uint64_t* set_of(std::uint64_t cell) { return &sets_[(cell & ~kSet) * words_]; }
  const std::uint64_t* set_of(std::uint64_t cell) const { return &sets_[(cell & ~kSet) * words_]; }
  std::uint64_t new_set();
  std::uint64_t narrowed_again(std::uint64_t cell);

  bool wide_ = false;
  std::size_t words_ = 1;
  std::vector<std::uint64_t> sets_;
  std::vector<std::uint64_t> free_;
};

}  // namespace kvroute

// Who holds a run: per medium (gpu, cpu, disk, other) a set of worker slots. 64 slots lie in place, more beside.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvroute::radix {

enum class Medium : std::uint8_t { kGpu = 0, kCpu = 1, kDisk = 2, kOther = 3 };
constexpr std::size_t kMedia = 4;

using Slot = std::uint32_t;
using Words = std::array<std::uint64_t, kMedia>;  // 64 slots in every medium

class Masks {
 public:
  std::size_t groups() const { return 1 + more_.size(); }
  // The slots 64 * group and above; a group beyond the last has none.
  const Words& group(std::size_t group) const {
    static constexpr Words kNobody{};
    if (group == 0) return first_;
    return group <= more_.size() ? more_[group - 1] : kNobody;
  }
  std::uint64_t held(std::size_t group) const {
    const Words& words = this->group(group);
    return words[0] | words[1] | words[2] | words[3];
  }
  bool has(Slot slot, Medium medium) const {
    return group(slot / 64)[static_cast<std::size_t>(medium)] >> (slot % 64) & 1;
  }
  bool has(Slot slot) const { return held(slot / 64) >> (slot % 64) & 1; }
  bool any() const;
  bool any_but(Slot slot, Medium medium) const;

  void set(Slot slot, Medium medium);
  void reset(Slot slot, Medium medium);
  bool operator==(const Masks&) const = default;
  std::size_t heap_bytes() const { return more_.capacity() * sizeof(Words); }

 private:
  Words first_{};
  std::vector<Words> more_;  // no empty group at its end, so that equal sets are equal
};

// The slots whose bit is set in a word of the slots from `base` on, lowest first.
template <typename Call>
void each_slot(std::uint64_t word, std::size_t base, Call call) {
  for (; word; word &= word - 1) call(static_cast<Slot>(base + std::countr_zero(word)));
}

inline bool Masks::any() const {
  return !more_.empty() || held(0);
}

inline bool Masks::any_but(Slot slot, Medium medium) const {
  for (std::size_t at = 0; at < groups(); ++at) {
    Words words = group(at);
    if (at == slot / 64) words[static_cast<std::size_t>(medium)] &= ~(std::uint64_t{1} << slot % 64);
    if (words[0] | words[1] | words[2] | words[3]) return true;
  }
  return false;
}

inline void Masks::set(Slot slot, Medium medium) {
  const std::size_t group = slot / 64;
  if (group > more_.size()) more_.resize(group);
  Words& words = group ? more_[group - 1] : first_;
  words[static_cast<std::size_t>(medium)] |= std::uint64_t{1} << slot % 64;
}

inline void Masks::reset(Slot slot, Medium medium) {
  const std::size_t group = slot / 64;
  if (group > more_.size()) return;
  Words& words = group ? more_[group - 1] : first_;
  words[static_cast<std::size_t>(medium)] &= ~(std::uint64_t{1} << slot % 64);
  while (!more_.empty() && !held(more_.size())) more_.pop_back();
}

}  // namespace kvroute::radix

// An engine's block hashes as 64-bit handles: the number itself, or a stand-in for what is not a number of 64 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/split_table.h"

namespace kvroute {

// A block hash as it came: a number from 0 to 2^64-1, a negative one, or 1 to 64 bytes. All of them are different.
struct EngineHash {
  enum class Form : std::uint8_t { kNumber, kNegative, kBytes };
  static constexpr std::size_t kMostBytes = 64;

  Form form = Form::kNumber;
  std::uint64_t number = 0;  // of a negative number its two's complement
  std::span<const std::uint8_t> bytes;
};

using Handle = std::uint64_t;

// Handles of numbers are the numbers. Others are remembered, under a handle drawn from a keyed hash: that one equals a
// number in use with probability 2^-64 each, and a number that comes later and equals one is remembered as well.
class EngineHashes {
 public:
  // The handle, if this hash can have one already: always for numbers.
  std::optional<Handle> find(const EngineHash& hash) const;
  Handle enter(const EngineHash& hash);
  // What a handle stands for; `room` holds its bytes, if it has some.
  EngineHash of(Handle handle, std::uint8_t (&room)[EngineHash::kMostBytes]) const;

  std::size_t remembered() const { return cells_by_handle_.size(); }
  std::size_t size_bytes() const;

  // Forget all but those for which `is_live` holds.
  template <class IsLive>
  void sweep(IsLive is_live) {
    std::vector<Handle> gone;
    cells_by_handle_.each([&](const PairSlot& slot) {
      if (!is_live(slot.key)) gone.push_back(slot.key);
    });
    for (const Handle handle : gone) forget(handle);
  }
  void clear();

 private:
  struct Cell {
    std::uint8_t length;  // 0: a number; 65: a negative one
    std::uint8_t bytes[32];
  };
  static constexpr std::uint8_t kNegativeLength = 65;

  static Handle drawn(const EngineHash& hash);
  bool equals(std::uint64_t cell, const EngineHash& hash) const;
  std::uint64_t new_cell(const EngineHash& hash);
  void forget(Handle handle);

  LargeMap cells_by_handle_;
  std::vector<Cell> cells_;  // a hash of more than 32 bytes takes two in a row
  std::vector<std::uint64_t> free_, free_pairs_;
};

}  // namespace kvroute

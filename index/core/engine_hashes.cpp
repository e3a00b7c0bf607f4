#include "core/engine_hashes.h"

#include <algorithm>
#include <cstring>

#include "core/request_key.h"

namespace kvroute {
namespace {

constexpr std::size_t kCellBytes = 32;

std::span<const std::uint8_t> text_of(const EngineHash& hash, std::uint8_t (&room)[8]) {
  if (hash.form == EngineHash::Form::kBytes) return hash.bytes;
  std::memcpy(room, &hash.number, sizeof hash.number);
  return room;
}

}  // namespace

std::optional<Handle> EngineHashes::find(const EngineHash& hash) const {
  if (hash.form == EngineHash::Form::kNumber) {
    if (cells_by_handle_.empty() || cells_by_handle_.find(hash.number) == nullptr) return hash.number;
  }
  for (Handle handle = drawn(hash);; ++handle) {
    const PairSlot* slot = cells_by_handle_.find(handle);
    if (slot == nullptr) return hash.form == EngineHash::Form::kNumber ? std::optional(hash.number) : std::nullopt;
    if (equals(slot->value, hash)) return handle;
  }
}

Handle EngineHashes::enter(const EngineHash& hash) {
  if (hash.form == EngineHash::Form::kNumber) {
    if (cells_by_handle_.empty() || cells_by_handle_.find(hash.number) == nullptr) return hash.number;
  }
  for (Handle handle = drawn(hash);; ++handle) {
    PairSlot* slot = cells_by_handle_.find(handle);
    if (slot == nullptr) {
      const std::uint64_t cell = new_cell(hash);
      cells_by_handle_.insert(handle).first->value = cell;
      return handle;
    }
    if (equals(slot->value, hash)) return handle;
  }
}

EngineHash EngineHashes::of(Handle handle, std::uint8_t (&room)[EngineHash::kMostBytes]) const {
  const PairSlot* slot = cells_by_handle_.empty() ? nullptr : cells_by_handle_.find(handle);
  if (slot == nullptr) return {EngineHash::Form::kNumber, handle, {}};
  const Cell& cell = cells_[slot->value];
  if (cell.length != 0 && cell.length != kNegativeLength) {
    const std::size_t first = std::min<std::size_t>(cell.length, kCellBytes);
    std::memcpy(room, cell.bytes, first);
    if (cell.length > first) std::memcpy(room + first, cells_[slot->value + 1].bytes, cell.length - first);
    return {EngineHash::Form::kBytes, 0, {room, cell.length}};
  }
  std::uint64_t number;
  std::memcpy(&number, cell.bytes, sizeof number);
  return {cell.length == 0 ? EngineHash::Form::kNumber : EngineHash::Form::kNegative, number, {}};
}

std::size_t EngineHashes::size_bytes() const {
  return cells_by_handle_.size_bytes() + cells_.size() * sizeof(Cell);
}

void EngineHashes::clear() {
  cells_by_handle_.clear();
  cells_ = {};
  free_ = {};
  free_pairs_ = {};
}

Handle EngineHashes::drawn(const EngineHash& hash) {
  std::uint8_t room[8];
  const std::span<const std::uint8_t> text = text_of(hash, room);
  const auto form = static_cast<std::uint64_t>(hash.form);
  return XXH3_64bits_withSeed(text.data(), text.size(), kSecret.multiply + form);
}

bool EngineHashes::equals(std::uint64_t at, const EngineHash& hash) const {
  const Cell& cell = cells_[at];
  std::uint8_t room[8];
  const std::span<const std::uint8_t> text = text_of(hash, room);
  if (hash.form == EngineHash::Form::kBytes) {
    // Both halves of a long hash lie in a row, but not without a gap: they are compared one by one.
    if (cell.length != text.size()) return false;
    const std::size_t first = std::min(text.size(), kCellBytes);
    if (std::memcmp(cell.bytes, text.data(), first) != 0) return false;
    return text.size() == first || std::memcmp(cells_[at + 1].bytes, text.data() + first, text.size() - first) == 0;
  }
  const std::uint8_t length = hash.form == EngineHash::Form::kNumber ? 0 : kNegativeLength;
  return cell.length == length && std::memcmp(cell.bytes, text.data(), text.size()) == 0;
}

std::uint64_t EngineHashes::new_cell(const EngineHash& hash) {
  std::uint8_t room[8];
  const std::span<const std::uint8_t> text = text_of(hash, room);
  const bool is_long = text.size() > kCellBytes;
  std::vector<std::uint64_t>& free = is_long ? free_pairs_ : free_;
  std::uint64_t at = cells_.size();
  if (free.empty()) {
    cells_.resize(cells_.size() + (is_long ? 2 : 1));
  } else {
    at = free.back();
    free.pop_back();
  }
  const bool is_bytes = hash.form == EngineHash::Form::kBytes;
  const std::uint8_t number_length = hash.form == EngineHash::Form::kNumber ? 0 : kNegativeLength;
  cells_[at].length = is_bytes ? static_cast<std::uint8_t>(text.size()) : number_length;
  std::memcpy(cells_[at].bytes, text.data(), std::min(text.size(), kCellBytes));
  if (is_long) std::memcpy(cells_[at + 1].bytes, text.data() + kCellBytes, text.size() - kCellBytes);
  return at;
}

void EngineHashes::forget(Handle handle) {
  const std::uint64_t at = cells_by_handle_.find(handle)->value;
  const std::uint8_t length = cells_[at].length;
  const bool is_long = length > kCellBytes && length != kNegativeLength;
  (is_long ? free_pairs_ : free_).push_back(at);
  cells_by_handle_.erase(handle);
}

}  // namespace kvroute

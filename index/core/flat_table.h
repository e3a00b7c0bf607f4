// An open-addressing hash table of 64-bit keys in one array: linear probing in order of the keys' hashes.
//
// Every slot lies behind those whose hash is smaller, so a probe for an absent key ends as soon as it meets a larger
// one, also in a table that is 7/8 full. Growth is by a quarter, which keeps tables 70 to 87.5 % full; it copies in
// order, so it reads and writes memory from one end to the other. A table that loses most of its keys shrinks.
//
// A removal shifts the rest of its run back, but for a few slots only: runs are long in a full table, some 20 slots at
// 85 %. Where it stops, the slot that was copied last is there twice. The second one is a spare: a slot whose key is the
// one before it. Probes meet the first one first, so they need not know; the next insertion before it uses it up.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/memory.h"

namespace kvroute {

// Drawn once a process: who sends keys cannot choose them so that they collide.
struct HashSecret {
  std::uint64_t add, multiply;
};
extern const HashSecret kSecret;

inline std::uint64_t mixed(std::uint64_t key) {
  const auto product = static_cast<unsigned __int128>(key ^ kSecret.add) * kSecret.multiply;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

struct KeySlot {
  std::uint64_t key;
};

struct PairSlot {
  std::uint64_t key, value;
};

// A pointer that `find` or `insert` gives is good until the next change. Slots other than `key` are zero when new.
template <class Slot>
class FlatTable {
 public:
  FlatTable() = default;
  // For keys whose hashes agree in the highest `shift` bits (index/core/split_table.h): places go by the bits behind.
  explicit FlatTable(int shift) : shift_(shift) {}

  int shift() const { return shift_; }
  std::size_t size() const { return size_ + has_zero_; }
  bool empty() const { return size() == 0; }
  std::size_t size_bytes() const { return slots_.size() * sizeof(Slot); }

  const Slot* find(std::uint64_t key) const { return const_cast<FlatTable*>(this)->find(key); }

  Slot* find(std::uint64_t key) {
    if (key == 0) return has_zero_ ? &zero_ : nullptr;
    return size_ > 0 ? probed(key, home(key)) : nullptr;
  }

  // As `find`, for a key whose place `prefetch` told; the table must not have changed since.
  const Slot* find(std::uint64_t key, std::size_t place) const {
    if (key == 0 || size_ == 0) return const_cast<FlatTable*>(this)->find(key);
    return const_cast<FlatTable*>(this)->probed(key, place);
  }

  // The slot of `key`, and whether it is new.
  std::pair<Slot*, bool> insert(std::uint64_t key) {
    if (key == 0) return {&zero_, !std::exchange(has_zero_, true)};
    const bool is_full = (size_ + 1) * 8 > slots_.size() * 7;
    if (is_full || (size_ + spares_ + 1) * 32 > slots_.size() * 29) {
      if (Slot* known = find(key)) return {known, false};
      resize(is_full ? slots_.size() + slots_.size() / 4 + 8 : slots_.size());
    }
    const std::size_t last = slots_.size() - 1;
    std::size_t at = home(key);
    for (std::size_t distance = 0; slots_[at].key != 0; ++distance, at = at < last ? at + 1 : 0) {
      if (slots_[at].key == key) return {&slots_[at], false};
      if (distance_of(slots_[at], at) < distance) break;
    }
    spares_ -= make_room(at);
    ++size_;
    slots_[at].key = key;
    return {&slots_[at], true};
  }

  bool erase(std::uint64_t key) {
    Slot* slot = find(key);
    if (slot == nullptr) return false;
    take(slot);
    fit();
    return true;
  }

  // Takes out a slot that `find` gave, and leaves the table as large as it is. Whoever takes out many, perhaps in the
  // order of places, calls `fit` once afterwards: in a table that shrinks meanwhile what is left would crowd at one end.
  void take(Slot* slot) {
    if (slot == &zero_) {
      zero_ = Slot{};
      has_zero_ = false;
      return;
    }
    const std::uint64_t key = slot->key;
    const std::size_t at = static_cast<std::size_t>(slot - &slots_[0]);
    std::size_t end = after(at);
    for (; slots_[end].key == key; end = after(end)) --spares_;
    while (end != at) shift_back(end = before(end));
    --size_;
  }

  // Gives back memory when most keys are gone.
  void fit() {
    if (size_ == 0) {
      slots_ = SlotArray<Slot>();
      spares_ = 0;
    } else if (size_ * 3 < slots_.size() && slots_.size() > 64) {
      resize(size_ + size_ / 2 + 8);
    }
  }

  void clear() {
    slots_ = SlotArray<Slot>();
    size_ = spares_ = 0;
    zero_ = Slot{};
    has_zero_ = false;
  }

  // Room for so many keys more, in one step.
  void reserve(std::size_t more) {
    const std::size_t needed = (size_ + more) * 8 / 7 + 8;
    if (needed > slots_.size()) resize(needed);
  }

  // All keys in two tables, by the next bit of their hashes, each with room for a quarter more than it has.
  std::array<FlatTable, 2> divided() const {
    std::array<FlatTable, 2> halves = {FlatTable(shift_ + 1), FlatTable(shift_ + 1)};
    std::array<Filling, 2> filling;
    std::array<std::size_t, 2> counts = {};
    in_order([&](const Slot& slot) { ++counts[next_bit(slot.key)]; });
    for (std::size_t at = 0; at < 2; ++at) halves[at].slots_ = SlotArray<Slot>((counts[at] + counts[at] / 4) * 8 / 7 + 8);
    in_order([&](const Slot& slot) {
      const std::size_t at = next_bit(slot.key);
      halves[at].append(slot, filling[at]);
    });
    if (has_zero_) *halves[next_bit(0)].insert(0).first = zero_;
    return halves;
  }

  // Asks for the slots where the key may lie, and tells its place.
  std::size_t prefetch(std::uint64_t key) const {
    if (size_ == 0) return 0;
    const std::size_t place = home(key);
    const Slot* first = &slots_[place];
    fetch_ahead(first);
    // A key lies some slots behind its place, mostly. What is small is near already, and is asked for just in case.
    if (size_bytes() >= kSmallBytes) fetch_ahead(reinterpret_cast<const char*>(first) + 64);
    return place;
  }

  template <class Visit>
  void each(Visit visit) const {
    if (has_zero_) visit(zero_);
    for (std::size_t at = 0; at < slots_.size(); ++at) {
      if (is_used(at)) visit(slots_[at]);
    }
  }

  template <class Visit>
  void each(Visit visit) {
    if (has_zero_) visit(zero_);
    for (std::size_t at = 0; at < slots_.size(); ++at) {
      if (is_used(at)) visit(slots_[at]);
    }
  }

  // As `each`, but far from the order of places. All tables have the same order: whoever puts the visited keys into
  // another one as it grows would crowd them at one end.
  template <class Visit>
  void each_scattered(Visit visit) const {
    if (has_zero_) visit(zero_);
    const std::size_t count = slots_.size();
    std::size_t stride = count / 8 * 5 + 1;
    while (std::gcd(stride, count) > 1) ++stride;
    for (std::size_t step = 0, at = 0; step < count; ++step, at = (at + stride) % count) {
      if (is_used(at)) visit(slots_[at]);
    }
  }

 private:
  // How far a table that is filled in order is: the next slot to write, and where the last key belonged.
  struct Filling {
    std::size_t next = 0, latest = 0;
  };

  std::size_t home(std::uint64_t key) const {
    return static_cast<std::size_t>(static_cast<unsigned __int128>(mixed(key) << shift_) * slots_.size() >> 64);
  }

  Slot* probed(std::uint64_t key, std::size_t at) {
    for (std::size_t distance = 0;; ++distance, at = after(at)) {
      Slot& slot = slots_[at];
      if (slot.key == key) return &slot;
      if (slot.key == 0) return nullptr;
      // Where a slot belongs costs as much to tell as several comparisons: it is asked at every fourth only.
      if ((distance & 3) == 3 && distance_of(slot, at) < distance) return nullptr;
    }
  }

  std::size_t next_bit(std::uint64_t key) const { return static_cast<std::size_t>(mixed(key) << shift_ >> 63); }

  std::size_t after(std::size_t at) const { return at + 1 < slots_.size() ? at + 1 : 0; }

  std::size_t before(std::size_t at) const { return at > 0 ? at - 1 : slots_.size() - 1; }

  // Neither empty nor a spare.
  bool is_used(std::size_t at) const { return slots_[at].key != 0 && slots_[at].key != slots_[before(at)].key; }

  std::size_t distance_of(const Slot& slot, std::size_t at) const {
    const std::size_t from = home(slot.key);
    return at >= from ? at - from : at + slots_.size() - from;
  }

  // Puts a slot whose key is not there into its place and moves the rest of its run along. There must be room.
  void place(const Slot& fresh) {
    std::size_t at = home(fresh.key);
    for (std::size_t distance = 0; slots_[at].key != 0 && distance_of(slots_[at], at) >= distance; ++distance) {
      at = after(at);
    }
    spares_ -= make_room(at);
    slots_[at] = fresh;
    ++size_;
  }

  // An empty slot at `at`, which is no spare: what lies there and its run up to a free slot or a spare move along. There
  // must be room. Whether it was a spare.
  bool make_room(std::size_t at) {
    std::size_t free = at;
    for (std::uint64_t key = 0; slots_[free].key != key && slots_[free].key != 0; free = after(free)) key = slots_[free].key;
    const bool is_spare = slots_[free].key != 0;
    while (free != at) {
      const std::size_t from = before(free);
      slots_[free] = slots_[from];
      free = from;
    }
    slots_[at] = Slot{};
    return is_spare;
  }

  // Takes out the slot at `at`. After kMostShifted others the last one stays behind as a spare of itself.
  void shift_back(std::size_t at) {
    for (std::size_t step = 0; step < kMostShifted; ++step) {
      const std::size_t next = after(at);
      if (slots_[next].key == 0 || distance_of(slots_[next], next) == 0) {
        slots_[at] = Slot{};
        return;
      }
      slots_[at] = slots_[next];
      at = next;
    }
    ++spares_;
  }

  void resize(std::size_t count) {
    FlatTable other(shift_);
    other.slots_ = SlotArray<Slot>(count);
    Filling filling;
    in_order([&](const Slot& slot) { other.append(slot, filling); });
    slots_ = std::move(other.slots_);
    spares_ = 0;
  }

  // One slot more of a table that is filled in order of hashes. Most are written one behind the other, those that shared
  // one place before are put in as new ones. There must be room.
  void append(const Slot& slot, Filling& filling) {
    const std::size_t from = home(slot.key), count = slots_.size();
    if (from < filling.latest || filling.next >= count) {
      place(slot);
      while (filling.next < count && slots_[filling.next].key != 0) ++filling.next;
      return;
    }
    filling.latest = from;
    filling.next = std::max(filling.next, from);
    if (filling.next >= count) return place(slot);
    slots_[filling.next++] = slot;
    ++size_;
  }

  // Every slot but the zero's in order of hashes: those at the front whose run began at the end come last.
  template <class Visit>
  void in_order(Visit visit) const {
    const std::size_t first = wrapped();
    for (std::size_t at = first; at < slots_.size(); ++at) {
      if (is_used(at)) visit(slots_[at]);
    }
    for (std::size_t at = 0; at < first; ++at) {
      if (is_used(at)) visit(slots_[at]);
    }
  }

  // How many slots at the front belong to the run that began at the end.
  std::size_t wrapped() const {
    std::size_t at = 0;
    while (at < slots_.size() && slots_[at].key != 0 && home(slots_[at].key) > at) ++at;
    return at;
  }

  static constexpr std::size_t kMostShifted = 3;
  static constexpr std::size_t kSmallBytes = 1024 * 1024;

  SlotArray<Slot> slots_;
  std::size_t size_ = 0, spares_ = 0;
  int shift_ = 0;
  Slot zero_{};
  bool has_zero_ = false;
};

using KeySet = FlatTable<KeySlot>;
using KeyMap = FlatTable<PairSlot>;

}  // namespace kvroute

// An open-addressing hash table of 64-bit keys in one array: linear probing in order of the keys' hashes.
//
// Every slot lies behind those whose hash is smaller, so a probe for an absent key ends as soon as it meets a larger
// one, also in a table that is 7/8 full. A removal shifts the rest of its run back: there are no marks of what is gone,
// and a table that loses most of its keys shrinks. Growth is by a quarter, which keeps tables 70 to 87.5 % full;
// it copies in order, so it reads and writes memory from one end to the other.
#pragma once

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
    if (size_ == 0) return nullptr;
    std::size_t at = home(key);
    for (std::size_t distance = 0;; ++distance, at = after(at)) {
      Slot& slot = slots_[at];
      if (slot.key == key) return &slot;
      if (slot.key == 0) return nullptr;
      // Where a slot belongs costs as much to tell as several comparisons: it is asked at every fourth only.
      if ((distance & 3) == 3 && distance_of(slot, at) < distance) return nullptr;
    }
  }

  // The slot of `key`, and whether it is new.
  std::pair<Slot*, bool> insert(std::uint64_t key) {
    if (key == 0) return {&zero_, !std::exchange(has_zero_, true)};
    if ((size_ + 1) * 8 > slots_.size() * 7) {
      if (Slot* known = find(key)) return {known, false};
      resize(slots_.size() + slots_.size() / 4 + 8);
    }
    const std::size_t last = slots_.size() - 1;
    std::size_t at = home(key);
    for (std::size_t distance = 0; slots_[at].key != 0; ++distance, at = at < last ? at + 1 : 0) {
      if (slots_[at].key == key) return {&slots_[at], false};
      if (distance_of(slots_[at], at) < distance) break;
    }
    make_room(slots_, at);
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
    shift_back(static_cast<std::size_t>(slot - &slots_[0]));
    --size_;
  }

  // Gives back memory when most keys are gone.
  void fit() {
    if (size_ == 0) {
      slots_ = SlotArray<Slot>();
    } else if (size_ * 3 < slots_.size() && slots_.size() > 64) {
      resize(size_ + size_ / 2 + 8);
    }
  }

  void clear() {
    slots_ = SlotArray<Slot>();
    size_ = 0;
    zero_ = Slot{};
    has_zero_ = false;
  }

  // Room for so many keys more, in one step.
  void reserve(std::size_t more) {
    const std::size_t needed = (size_ + more) * 8 / 7 + 8;
    if (needed > slots_.size()) resize(needed);
  }

  void prefetch(std::uint64_t key) const {
    if (size_ == 0) return;
    const Slot* first = &slots_[home(key)];
    fetch_ahead(first);
    fetch_ahead(reinterpret_cast<const char*>(first) + 64);  // a key lies some slots behind its place, mostly
  }

  template <class Visit>
  void each(Visit visit) const {
    if (has_zero_) visit(zero_);
    for (std::size_t at = 0; at < slots_.size(); ++at) {
      if (slots_[at].key != 0) visit(slots_[at]);
    }
  }

  template <class Visit>
  void each(Visit visit) {
    if (has_zero_) visit(zero_);
    for (std::size_t at = 0; at < slots_.size(); ++at) {
      if (slots_[at].key != 0) visit(slots_[at]);
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
      if (slots_[at].key != 0) visit(slots_[at]);
    }
  }

 private:
  std::size_t home(std::uint64_t key) const { return home_in(slots_, key); }

  std::size_t home_in(const SlotArray<Slot>& slots, std::uint64_t key) const {
    return static_cast<std::size_t>(static_cast<unsigned __int128>(mixed(key) << shift_) * slots.size() >> 64);
  }

  std::size_t after(std::size_t at) const { return at + 1 < slots_.size() ? at + 1 : 0; }

  std::size_t distance_of(const Slot& slot, std::size_t at) const { return distance_in(slots_, slot, at); }

  std::size_t distance_in(const SlotArray<Slot>& slots, const Slot& slot, std::size_t at) const {
    const std::size_t from = home_in(slots, slot.key);
    return at >= from ? at - from : at + slots.size() - from;
  }

  // Puts a slot whose key is not there into its place and moves the rest of its run along. There must be room.
  Slot* place(SlotArray<Slot>& slots, const Slot& fresh) const {
    const std::size_t last = slots.size() - 1;
    std::size_t at = home_in(slots, fresh.key);
    for (std::size_t distance = 0; slots[at].key != 0 && distance_in(slots, slots[at], at) >= distance; ++distance) {
      at = at < last ? at + 1 : 0;
    }
    make_room(slots, at);
    slots[at] = fresh;
    return &slots[at];
  }

  // An empty slot at `at`: what lies there and the rest of its run move along. There must be room.
  static void make_room(SlotArray<Slot>& slots, std::size_t at) {
    const std::size_t last = slots.size() - 1;
    std::size_t free = at;
    while (slots[free].key != 0) free = free < last ? free + 1 : 0;
    while (free != at) {
      const std::size_t before = free > 0 ? free - 1 : last;
      slots[free] = slots[before];
      free = before;
    }
    slots[at] = Slot{};
  }

  void shift_back(std::size_t at) {
    for (std::size_t next = after(at);; at = next, next = after(next)) {
      if (slots_[next].key == 0 || distance_of(slots_[next], next) == 0) break;
      slots_[at] = slots_[next];
    }
    slots_[at] = Slot{};
  }

  // Slots lie in order of their places here, and so they do there, but for those that shared one place here and those
  // at the front whose run began at the end: most are written one behind the other, the others are put in as new ones.
  void resize(std::size_t count) {
    SlotArray<Slot> larger(count);
    std::size_t next = 0, latest = 0;
    const std::size_t first = wrapped();
    for (std::size_t at = first; at < slots_.size(); ++at) {
      if (slots_[at].key == 0) continue;
      const std::size_t from = home_in(larger, slots_[at].key);
      if (from < latest || next >= count) {
        place(larger, slots_[at]);
        while (next < count && larger[next].key != 0) ++next;
        continue;
      }
      latest = from;
      next = from > next ? from : next;
      if (next < count) larger[next++] = slots_[at];
      else place(larger, slots_[at]);
    }
    for (std::size_t at = 0; at < first; ++at) place(larger, slots_[at]);
    slots_ = std::move(larger);
  }

  // How many slots at the front belong to the run that began at the end.
  std::size_t wrapped() const {
    std::size_t at = 0;
    while (at < slots_.size() && slots_[at].key != 0 && home(slots_[at].key) > at) ++at;
    return at;
  }

  SlotArray<Slot> slots_;
  std::size_t size_ = 0;
  int shift_ = 0;
  Slot zero_{};
  bool has_zero_ = false;
};

using KeySet = FlatTable<KeySlot>;
using KeyMap = FlatTable<PairSlot>;

}  // namespace kvroute

// A hash table of 64-bit keys for millions of them: flat tables, each divided in two when it has grown large.
//
// One flat table of six million slots takes over a tenth of a second to grow, and everything waits; here no change moves
// many more than `kMost` slots. This is extendible hashing: a directory names the part for the highest bits of a hash, and a
// part that is full is divided by the next bit. The parts one after the other lie in order of the keys' hashes, as the
// slots of a single table do.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/flat_table.h"

namespace kvroute {

#ifndef KVROUTE_MOST_SLOTS  // the build with sanitizers has small parts, so that its tests divide and join them
#define KVROUTE_MOST_SLOTS (1u << 19)
#endif

// As FlatTable: a pointer that `find` or `insert` gives is good until the next change.
template <class Slot, std::size_t kMost = KVROUTE_MOST_SLOTS>
class SplitTable {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  std::size_t size_bytes() const {
    std::size_t total = directory_.capacity() * sizeof(Part*) + parts_.size() * sizeof(Part);
    each_part([&](const Part& part) { total += part.size_bytes(); });
    return total;
  }

  const Slot* find(std::uint64_t key) const { return part_of(key).find(key); }
  Slot* find(std::uint64_t key) { return part_of(key).find(key); }

  // The slot of `key`, and whether it is new.
  std::pair<Slot*, bool> insert(std::uint64_t key) {
    while (part_of(key).size() >= kMost && part_of(key).shift() < kMostBits && part_of(key).find(key) == nullptr) {
      divide(part_of(key), key);
    }
    const auto inserted = part_of(key).insert(key);
    size_ += inserted.second;
    return inserted;
  }

  bool erase(std::uint64_t key) {
    Slot* slot = find(key);
    if (slot == nullptr) return false;
    take(slot);
    fit(key);
    return true;
  }

  // Takes out a slot that `find` gave; no memory is given back before `fit`.
  void take(Slot* slot) {
    part_of(slot->key).take(slot);
    --size_;
  }

  // Gives back memory after this key was taken out.
  void fit(std::uint64_t key) {
    if (size_ * 4 < kMost && !directory_.empty()) {
      join();
    } else {
      part_of(key).fit();
    }
  }

  // Gives back memory after any keys were taken out.
  void fit() {
    each_part([](Part& part) { part.fit(); });
    if (size_ * 4 < kMost && !directory_.empty()) join();
  }

  void clear() { *this = SplitTable(); }

  // Where a key is looked for, until the next change.
  struct Place {
    const FlatTable<Slot>* part;
    std::size_t at;
  };

  // Asks for the slots where the key may lie, and tells its place.
  Place prefetch(std::uint64_t key) const {
    const Part& part = part_of(key);
    return {&part, part.prefetch(key)};
  }

  const Slot* find(std::uint64_t key, const Place& place) const { return place.part->find(key, place.at); }

  template <class Visit>
  void each(Visit visit) const {
    each_part([&](const Part& part) { part.each(visit); });
  }

  template <class Visit>
  void each(Visit visit) {
    each_part([&](Part& part) { part.each(visit); });
  }

 private:
  using Part = FlatTable<Slot>;
  static constexpr int kMostBits = 24;

  const Part& part_of(std::uint64_t key) const { return const_cast<SplitTable*>(this)->part_of(key); }

  Part& part_of(std::uint64_t key) {
    return directory_.empty() ? whole_ : *directory_[static_cast<std::size_t>(mixed(key) >> (64 - bits_))];
  }

  template <class Visit>
  void each_part(Visit visit) const {
    const_cast<SplitTable*>(this)->each_part([&](Part& part) { visit(std::as_const(part)); });
  }

  template <class Visit>
  void each_part(Visit visit) {
    if (directory_.empty()) visit(whole_);
    for (std::size_t at = 0; at < directory_.size();) {
      Part& part = *directory_[at];
      at += named_by(part);
      visit(part);
    }
  }

  // How many entries of the directory name this part.
  std::size_t named_by(const Part& part) const { return std::size_t{1} << (bits_ - part.shift()); }

  // `key` is one that belongs into the part.
  void divide(Part& part, std::uint64_t key) {
    std::array<Part, 2> divided = part.divided();
    std::array<std::unique_ptr<Part>, 2> halves;
    for (std::size_t at = 0; at < 2; ++at) halves[at] = std::make_unique<Part>(std::move(divided[at]));
    if (part.shift() == bits_) widen();
    const std::size_t count = named_by(part), first = static_cast<std::size_t>(mixed(key) >> (64 - bits_)) & ~(count - 1);
    for (std::size_t at = 0; at < count; ++at) directory_[first + at] = halves[at < count / 2 ? 0 : 1].get();
    std::erase_if(parts_, [&](const std::unique_ptr<Part>& one) { return one.get() == &part; });
    whole_ = Part();
    for (auto& half : halves) parts_.push_back(std::move(half));
  }

  // One bit more names a part.
  void widen() {
    std::vector<Part*> wider = {&whole_, &whole_};
    if (!directory_.empty()) wider.resize(2 * directory_.size());
    for (std::size_t at = 0; at < directory_.size(); ++at) wider[2 * at] = wider[2 * at + 1] = directory_[at];
    directory_ = std::move(wider);
    ++bits_;
  }

  void join() {
    Part all;
    if (size_ > 0) all.reserve(size_);
    each([&](const Slot& slot) { *all.insert(slot.key).first = slot; });
    clear();
    size_ = all.size();
    whole_ = std::move(all);
  }

  Part whole_;  // all of it, as long as there is no directory
  std::vector<Part*> directory_;
  std::vector<std::unique_ptr<Part>> parts_;
  int bits_ = 0;
  std::size_t size_ = 0;
};

using LargeMap = SplitTable<PairSlot>;

}  // namespace kvroute

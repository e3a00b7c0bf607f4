// The radix index: which SGLang worker holds which prefix, token by token, in one tree for all of them.
//
// The counterpart of index/radix.py, whose documentation holds; index/radix_native.py gives both the same interface.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/radix_holdings.h"
#include "core/radix_match.h"

namespace kvroute::radix {

// Why a store was not used; the names are those of `Delta.skipped`.
enum class Skip : std::uint8_t { kUsed, kShape, kCycle, kPlaceholder, kTooLong };
const char* name_of(Skip skip);

// A store as the index is told it. `page_size`, `bigrams` and the lengths may be anything.
struct StoredPages {
  std::optional<std::int64_t> parent;
  Handles handles;
  std::span<const std::uint8_t> tokens;
  std::uint64_t page_size = 0;
  bool bigrams = false;
  Medium medium = Medium::kGpu;
};

// A worker's run in one medium: below `parent`, or at the root of `name`.
struct DumpedRun {
  Medium medium;
  std::optional<std::int64_t> parent;
  std::string_view name;
  std::vector<std::int64_t> handles;
  std::span<const std::uint8_t> tokens;
};

class RadixIndex {
 public:
  // `unit_bytes` is 4 for tokens, 8 for the bigrams of EAGLE.
  RadixIndex(std::uint32_t page_size, std::uint32_t unit_bytes);

  std::uint32_t page_size() const { return page_size_; }
  std::uint32_t unit_bytes() const { return unit_bytes_; }
  std::size_t size_bytes() const { return holdings_.size_bytes(); }
  std::size_t table_bytes() const { return holdings_.tree().table().size_bytes(); }
  std::uint64_t page_count() const { return holdings_.tree().page_count(); }
  std::uint32_t node_count() const { return holdings_.tree().node_count(); }
  const Holder& holder(Slot slot) const { return holdings_.holder(slot); }
  bool has(Slot slot) const { return holdings_.has(slot); }

  void add(Slot slot) { holdings_.add(slot); }
  void drop(Slot slot);
  std::uint64_t clear(Slot slot);
  Skip store(Slot slot, const StoredPages& stored, std::string_view name, RadixDelta& delta);
  void remove(Slot slot, Handles handles, Medium medium, RadixDelta& delta);
  std::vector<Held> match(std::span<const std::uint8_t> tokens, const std::vector<std::string_view>& names,
                          const SlotSet& slots) const;

  // A worker's runs by depth, so that parents come before children.
  std::vector<DumpedRun> dump(Slot slot);
  // Hold a dumped run again; below one that nobody holds it waits for it as an orphan does. `tokens` must be as long as
  // the handles say.
  void restore(Slot slot, const DumpedRun& run);
  void restore_copies(Slot slot, std::int64_t page, std::int64_t count) { holdings_.holder(slot).copies[page] = count; }

  // What is wrong inside; empty when nothing is.
  std::string fault() const;

 private:
  bool is_whole(const StoredPages& stored) const;
  void store_run(Slot slot, const RunView& run, std::string_view name, RadixDelta& delta);
  DumpedRun dumped(const Holder& holder, const Node& node) const;
  void give_back();

  std::uint32_t page_size_;
  std::uint32_t unit_bytes_;
  Holdings holdings_;
  std::uint64_t most_pages_ = 0;  // since memory was given back to the system
};

}  // namespace kvroute::radix

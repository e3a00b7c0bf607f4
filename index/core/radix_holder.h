// What the radix index knows of one worker beside the tree: its page counts, odd handles, copies, parked events.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/handle_hash.h"
#include "core/parked_runs.h"
#include "core/radix_masks.h"

namespace kvroute::radix {

using Handles = std::span<const std::int64_t>;

// One worker's part, as `Holder` of index/radix_holder.py. A page is named by its handle in the page table, which no
// split or join changes. `copies` are GPU stores of a page beyond the first. `meaning` maps handles which mean another
// page to this worker than to the table, `named` is its inverse. `foreign`: this worker's handles contradicted the table
// once, so from then on only those of pages that it holds are believed.
struct Holder {
  template <typename Value>
  using Table = std::unordered_map<std::int64_t, Value, HandleHash>;

  std::array<std::uint64_t, kMedia> pages{};
  Table<std::int64_t> copies;
  Table<std::int64_t> meaning;
  Table<std::vector<std::int64_t>> named;
  bool foreign = false;
  ParkedRuns parked;

  // The table's handle of the page that a handle means to this worker.
  std::int64_t meant(std::int64_t handle) const;
  // The handle by which this worker names a page.
  std::int64_t name_of(std::int64_t page) const;
  // Let `handle` mean `page` from now on; answers the page it was bound to, when that was another.
  std::optional<std::int64_t> bind(std::int64_t handle, std::int64_t page);
  // Forget the odd handles of pages that the worker holds no more.
  void unbind(Handles held);
  bool has_odd(Handles handles) const;

  // Count one more GPU store of pages that are held there.
  void copy(Handles held);
  // Count one GPU store less of the leading pages that have more than one; answers how many these are.
  std::uint32_t drop_copies(Handles held);
  // How many leading pages have one GPU store only.
  std::uint32_t single(Handles held) const;

  // Memory of the rare tables, estimated.
  std::size_t size_bytes() const;
};

}  // namespace kvroute::radix

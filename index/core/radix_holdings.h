// Who holds which pages of the radix tree: placing runs, taking them back, and what each worker calls a page.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/radix_holder.h"
#include "core/radix_tree.h"

namespace kvroute::radix {

// What a change did: (page, medium) holdings that appeared or vanished, and pages parked.
struct RadixDelta {
  std::uint64_t stored = 0;
  std::uint64_t removed = 0;
  std::uint64_t orphans = 0;
};

// The tree and its workers, kept in step: a worker holds a whole node or nothing of it, medium by medium. The methods
// are those of `Holdings` in index/radix_holdings.py and answer the same.
class Holdings {
 public:
  explicit Holdings(std::size_t page_bytes) : tree_(page_bytes) {}

  RadixTree& tree() { return tree_; }
  const RadixTree& tree() const { return tree_; }
  Holder& holder(Slot slot) { return *holders_[slot]; }
  const Holder& holder(Slot slot) const { return *holders_[slot]; }
  bool has(Slot slot) const { return slot < holders_.size() && holders_[slot]; }
  std::size_t size_bytes() const;

  void add(Slot slot);
  void drop(Slot slot);
  std::uint64_t clear(Slot slot);

  // Where a run with this parent goes; nothing when the parent is not known.
  std::optional<Place> below(Slot slot, std::optional<std::int64_t> parent, std::string_view name);
  // Hold a run that continues at `place`: along the pages that are there already, then on new ones.
  void store(Slot slot, const RunView& run, Place place, RadixDelta& delta);
  // Hold pages named by their handles alone; false when one is not known (the others are held).
  bool store_known(Slot slot, Handles handles, Medium medium, RadixDelta& delta);
  // Take pages back in one medium, run by run; those the worker does not hold there do not matter.
  void remove(Slot slot, Handles handles, Medium medium, RadixDelta& delta);

 private:
  struct Step {
    Place end;
    std::uint32_t count;
  };

  const Node& node(NodeId id) const { return tree_.node(id); }
  Handles pages_of(NodeId id, std::uint32_t first, std::uint32_t count) const;
  std::optional<Place> find(Slot slot, std::int64_t handle) const;
  Step advance(Slot slot, const RunView& run, std::uint32_t done, Place place, RadixDelta& delta);
  Step grow(Slot slot, const RunView& run, std::uint32_t done, NodeId parent, RadixDelta& delta);
  void invent_handle(NodeId id, std::uint32_t index);
  void bind(Slot slot, Handles pages, Handles handles, std::vector<std::int64_t>& rebound);
  Place hold(Slot slot, Medium medium, Place place, std::uint32_t count, RadixDelta& delta);
  std::uint32_t removed_run(Slot slot, Handles handles, Medium medium, Place place, RadixDelta& delta);
  void release(Slot slot, Medium medium, Place place, std::uint32_t count, RadixDelta& delta);
  void evict(Slot slot, std::int64_t page, RadixDelta& delta);
  NodeId isolate(NodeId id, std::uint32_t first, std::uint32_t last);

  RadixTree tree_;
  std::vector<std::unique_ptr<Holder>> holders_;  // by slot
  std::uint64_t invented_ = 0;
};

}  // namespace kvroute::radix

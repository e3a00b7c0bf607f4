// Page handle -> place in the radix tree, in 10 to 15 bytes a page.
//
// Open addressing over one 64-bit entry a page: node id, page depth, 8 bits of the handle's hash. The handle itself is
// not kept: a probe looks it up in the node, mostly only when it is the right one. Depth counts from the root, so cutting
// a node in two changes the entries of one half only. The table is cut into segments that grow on their own, each by
// another factor, so that no insertion has to move much.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/radix_node.h"

namespace kvroute::radix {

constexpr std::uint32_t kMaxDepth = 1u << 28;  // pages of one sequence that an entry can count

// A node and an index into its pages, or its length for the place below it.
struct Place {
  NodeId node = kNone;
  std::uint32_t index = 0;
};

class PageTable {
 public:
  explicit PageTable(const RadixNodes& nodes);

  std::uint64_t live() const { return live_; }
  std::size_t size_bytes() const;

  // The node that holds the page of this handle, and the page's index in it.
  std::optional<Place> find(std::int64_t handle) const;

  // Enter the node's pages `first` to `last`; answers the indices left out, their handles being in use.
  std::vector<std::uint32_t> insert(NodeId node, std::uint32_t first, std::uint32_t last);

  // Name node `to` in the entries of these pages, which begin at `depth` and belong to node `from`.
  void move(std::span<const std::int64_t> handles, std::uint32_t depth, NodeId from, NodeId to);

  // Take out the node's pages from index `first` on; the node must still have them.
  void discard(NodeId node, std::uint32_t first);

  // Take out all pages of nodes that are marked as leaving.
  void discard_leaving(const std::vector<NodeId>& nodes);

 private:
  struct Segment {
    std::unique_ptr<std::uint64_t[]> slots;
    std::uint32_t size = 0;
    std::uint32_t live = 0;
    std::uint32_t deleted = 0;  // marked slots
    std::uint32_t room = 0;     // empty slots that may still be filled
  };
  static constexpr std::size_t kSegments = 256;

  std::int64_t handle_at(std::uint64_t entry) const;
  bool insert_one(NodeId node, std::uint32_t depth, std::int64_t handle);
  std::uint64_t* slot_of(std::uint64_t hash, std::uint64_t entry);
  void take_out(std::uint64_t hash, std::uint64_t entry);
  void prefetch(std::int64_t handle) const;
  void rebuild(std::size_t number, bool without_leaving);

  const RadixNodes& nodes_;
  std::array<Segment, kSegments> segments_;
  std::uint64_t live_ = 0;
};

}  // namespace kvroute::radix

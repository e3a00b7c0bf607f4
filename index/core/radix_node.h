// A node of the radix tree, one run of whole pages that the same workers hold, and where all nodes lie.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/page_run.h"
#include "core/radix_masks.h"

namespace kvroute::radix {

using NodeId = std::uint32_t;
constexpr NodeId kNone = 0;
constexpr NodeId kMaxNodes = 1u << 28;  // what an entry of the page table can name

// Pages `start` to `start + run.size()` of every sequence that leads through here, counted from the root. A root has no
// pages and no parent. Children are a doubly linked list; RadixChildren finds them by their first page.
struct Node {
  PageRun run;
  Masks masks;
  NodeId parent = kNone;
  NodeId first_child = kNone;
  NodeId next = kNone;
  NodeId previous = kNone;
  std::uint32_t child_count = 0;
  std::uint32_t start = 0;
  bool is_root = false;
  bool leaves = false;  // taken out of the tree, its entries of the page table are about to go
};

// Nodes by id, at addresses that stay. Ids are used again.
class RadixNodes {
 public:
  Node& operator[](NodeId id) { return chunks_[id / kChunk][id % kChunk]; }
  const Node& operator[](NodeId id) const { return chunks_[id / kChunk][id % kChunk]; }
  // Whether there may be a node of this id: a freed one has neither parent nor children.
  bool has(NodeId id) const { return id < next_; }
  NodeId end() const { return next_; }
  std::uint32_t live() const { return live_; }
  std::size_t size_bytes() const { return live_ ? chunks_.size() * kChunk * sizeof(Node) + free_.capacity() * 4 : 0; }

  NodeId make();
  // Free a node; when it was the last, all memory goes.
  void release(NodeId id);

 private:
  static constexpr NodeId kChunk = 64;

  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::vector<NodeId> free_;
  NodeId next_ = 1;
  std::uint32_t live_ = 0;
};

}  // namespace kvroute::radix

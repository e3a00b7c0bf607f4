// The shape of the radix tree: growing, cutting, splitting and joining runs, with the page table kept in step.
//
// Splitting and joining cost what the smaller side holds: it is the one whose node, and so whose entries in the page
// table, change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/page_table.h"
#include "core/radix_children.h"
#include "core/radix_node.h"

namespace kvroute::radix {

// The nodes that one slot holds. Ids that it holds no more stay until they are as many as those it does.
class SlotNodes {
 public:
  std::uint32_t live() const { return live_; }
  std::size_t size_bytes() const { return live_ ? ids_.capacity() * sizeof(NodeId) : 0; }
  void note(NodeId id);
  // After the node's masks have changed.
  void unnote(const RadixNodes& nodes, Slot slot);
  // Each node once, in no order.
  std::vector<NodeId> list(const RadixNodes& nodes, Slot slot);

 private:
  void compact(const RadixNodes& nodes, Slot slot);

  std::vector<NodeId> ids_;
  std::uint32_t live_ = 0;
};

// Nodes, their roots by namespace, and per slot the nodes it holds. `page_count` and `node_count` leave the roots out.
// Callers change who holds a node and call `settle` afterwards, which takes out what nobody needs and joins what need
// not be apart.
class RadixTree {
 public:
  explicit RadixTree(std::size_t page_bytes);
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  std::size_t page_bytes() const { return page_bytes_; }
  std::uint64_t page_count() const { return page_count_; }
  std::uint32_t node_count() const { return nodes_.live() - static_cast<std::uint32_t>(roots_.size()); }
  std::size_t size_bytes() const;
  const PageTable& table() const { return table_; }
  const RadixNodes& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  NodeId child(NodeId parent, const std::uint8_t* page) const { return children_.find(parent, page); }

  void add(Slot slot);
  void drop(Slot slot);
  std::vector<NodeId> held_by(Slot slot) { return holdings_[slot].list(nodes_, slot); }
  std::uint32_t held_count(Slot slot) const { return holdings_[slot].live(); }

  // The root of a namespace, made when it is not there; `known_root` answers kNone instead.
  NodeId root(std::string_view name);
  NodeId known_root(std::string_view name) const;
  const std::string& name_of(NodeId root) const { return *names_.at(root); }

  // Whether a run of this length still has a place below depth `start`.
  bool has_room(std::uint64_t start, std::uint64_t pages) const;

  // Hang a new leaf, held by one slot, below a node; answers it and the indices of pages the table did not take.
  std::pair<NodeId, std::vector<std::uint32_t>> grow(NodeId parent, PageView pages, Slot slot, Medium medium);
  // Lengthen a leaf in place; answers the indices as `grow`.
  std::vector<std::uint32_t> extend(NodeId leaf, PageView pages);
  // Give a page that the table did not take another handle; false when that is in use too.
  bool rename(NodeId id, std::uint32_t index, std::int64_t handle);
  // Take the pages from index `at` on off a leaf; some must stay.
  void cut(NodeId leaf, std::uint32_t at);

  void hold(NodeId id, Slot slot, Medium medium);
  void release(NodeId id, Slot slot, Medium medium);
  void release_all(NodeId id, Slot slot);

  // Cut a node in two before page `at`, both with its holders; one of the two keeps the id.
  std::pair<NodeId, NodeId> split(NodeId id, std::uint32_t at);
  // After a change at a node: take out runs nobody holds and nothing hangs on, join those with equal holders.
  void settle(NodeId id);
  // `settle` after a change at many nodes; what goes leaves the page table at once.
  void settle_all(const std::vector<NodeId>& nodes);

  // What is wrong between nodes, table and slots; empty when nothing is. For tests and fuzzing.
  std::string fault() const;
  std::uint64_t held_pages(Slot slot, Medium medium) const;

 private:
  NodeId split_head(NodeId id, std::uint32_t at);
  NodeId split_tail(NodeId id, std::uint32_t at);
  NodeId join(NodeId upper, NodeId lower);
  std::string fault_of(NodeId id) const;
  NodeId make(std::uint32_t start, PageView pages, Masks masks);
  void remove(NodeId leaf);
  void forget(NodeId id);
  void drop_root(NodeId root);
  bool joinable(NodeId upper, NodeId lower) const;
  PageView view(NodeId id) const { return nodes_[id].run.view(page_bytes_); }

  std::size_t page_bytes_;
  RadixNodes nodes_;
  RadixChildren children_;
  PageTable table_;
  std::map<std::string, NodeId, std::less<>> roots_;
  std::unordered_map<NodeId, const std::string*> names_;  // of the roots
  std::vector<SlotNodes> holdings_;
  std::uint64_t page_count_ = 0;
  std::vector<NodeId>* sweeping_ = nullptr;  // nodes taken out whose table entries go together
};

}  // namespace kvroute::radix

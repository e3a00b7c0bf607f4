// What must hold between the tree, the table and the slots at any time: for tests and fuzzing, never called in service.
#include <cstring>

#include "core/radix_tree.h"

namespace kvroute::radix {

std::string RadixTree::fault_of(NodeId id) const {
  const Node& node = nodes_[id];
  if (node.is_root) {
    if (node.run.size() || node.start || node.masks.any()) return "a root has pages";
    return node.child_count || sweeping_ ? "" : "a root has no children";
  }
  const Node& parent = nodes_[node.parent];
  if (!node.run.size()) return "a node has no pages";
  if (node.start != parent.start + parent.run.size()) return "a node does not begin where its parent ends";
  if (children_.find(node.parent, node.run.tokens(page_bytes_)) != id) return "a child is not found by its page";
  if (!node.masks.any() && !node.child_count) return "a leaf is held by nobody";
  if (node.child_count == 1 && node.masks == nodes_[node.first_child].masks) return "two runs could be one";
  for (std::uint32_t index = 0; index < node.run.size(); ++index) {
    const auto place = table_.find(node.run.handle(index));
    if (!place || place->node != id || place->index != index) return "a page is not where the table says";
  }
  return "";
}

std::string RadixTree::fault() const {
  std::uint64_t pages = 0;
  std::uint32_t live = 0;
  std::vector<std::uint32_t> held(holdings_.size());
  for (NodeId id = 1; id < nodes_.end(); ++id) {
    const Node& node = nodes_[id];
    if (node.parent == kNone && !node.is_root) continue;
    if (std::string what = fault_of(id); !what.empty()) return what;
    ++live;
    pages += node.run.size();
    std::uint32_t children = 0;
    for (NodeId child = node.first_child; child != kNone; child = nodes_[child].next, ++children) {
      if (nodes_[child].parent != id) return "a child has another parent";
    }
    if (children != node.child_count) return "children are miscounted";
    for (std::size_t slot = 0; slot < held.size(); ++slot) held[slot] += node.masks.has(static_cast<Slot>(slot));
  }
  if (live != nodes_.live()) return "nodes are miscounted";
  if (pages != page_count_ || pages != table_.live()) return "pages are miscounted";
  for (std::size_t slot = 0; slot < held.size(); ++slot) {
    if (held[slot] != holdings_[slot].live()) return "the nodes of a slot are miscounted";
  }
  return "";
}

std::uint64_t RadixTree::held_pages(Slot slot, Medium medium) const {
  std::uint64_t pages = 0;
  for (NodeId id = 1; id < nodes_.end(); ++id) {
    if (nodes_[id].masks.has(slot, medium)) pages += nodes_[id].run.size();
  }
  return pages;
}

}  // namespace kvroute::radix

#include "core/radix_tree.h"

#include <algorithm>

namespace kvroute::radix {
namespace {

constexpr std::size_t kRootBytes = 96;  // a root's name and its place in the map

template <typename Call>
void each_holder(const Masks& masks, Call call) {
  for (std::size_t group = 0; group < masks.groups(); ++group) each_slot(masks.held(group), group * 64, call);
}

}  // namespace

void SlotNodes::note(NodeId id) {
  ids_.push_back(id);
  ++live_;
}

void SlotNodes::unnote(const RadixNodes& nodes, Slot slot) {
  --live_;
  if (!live_) {
    ids_ = std::vector<NodeId>();
  } else if (ids_.size() > 2 * std::size_t{live_} + 16) {
    compact(nodes, slot);
  }
}

std::vector<NodeId> SlotNodes::list(const RadixNodes& nodes, Slot slot) {
  compact(nodes, slot);
  return ids_;
}

void SlotNodes::compact(const RadixNodes& nodes, Slot slot) {
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  std::erase_if(ids_, [&](NodeId id) { return !nodes[id].masks.has(slot); });
  if (ids_.capacity() > 4 * ids_.size()) ids_.shrink_to_fit();
}

RadixTree::RadixTree(std::size_t page_bytes)
    : page_bytes_(page_bytes), children_(nodes_, page_bytes), table_(nodes_) {}

std::size_t RadixTree::size_bytes() const {
  std::size_t bytes = page_count_ * (page_bytes_ + sizeof(std::int64_t)) + nodes_.size_bytes();
  bytes += children_.size_bytes() + table_.size_bytes() + roots_.size() * kRootBytes;
  for (const SlotNodes& nodes : holdings_) bytes += nodes.size_bytes();
  return bytes;
}

void RadixTree::add(Slot slot) {
  if (slot >= holdings_.size()) holdings_.resize(slot + 1);
}

void RadixTree::drop(Slot slot) {
  if (slot + 1 == holdings_.size()) holdings_.pop_back();
}

NodeId RadixTree::known_root(std::string_view name) const {
  const auto found = roots_.find(name);
  return found == roots_.end() ? kNone : found->second;
}

NodeId RadixTree::root(std::string_view name) {
  NodeId id = known_root(name);
  if (id == kNone) {
    id = nodes_.make();
    nodes_[id].is_root = true;
    names_[id] = &roots_.emplace(name, id).first->first;
  }
  return id;
}

bool RadixTree::has_room(std::uint64_t start, std::uint64_t pages) const {
  return start + pages < kMaxDepth && nodes_.live() + 2 * pages + 4 < kMaxNodes;
}

std::pair<NodeId, std::vector<std::uint32_t>> RadixTree::grow(NodeId parent, PageView pages, Slot slot, Medium medium) {
  Masks masks;
  masks.set(slot, medium);
  const NodeId leaf = make(nodes_[parent].start + nodes_[parent].run.size(), pages, std::move(masks));
  children_.link(parent, leaf);
  page_count_ += pages.size();
  return {leaf, table_.insert(leaf, 0, pages.size())};
}

std::vector<std::uint32_t> RadixTree::extend(NodeId leaf, PageView pages) {
  PageRun& run = nodes_[leaf].run;
  const std::uint32_t first = run.size();
  run.append(page_bytes_, pages);
  page_count_ += pages.size();
  return table_.insert(leaf, first, run.size());
}

bool RadixTree::rename(NodeId id, std::uint32_t index, std::int64_t handle) {
  nodes_[id].run.set_handle(index, handle);
  return table_.insert(id, index, index + 1).empty();
}

void RadixTree::cut(NodeId leaf, std::uint32_t at) {
  table_.discard(leaf, at);
  PageRun& run = nodes_[leaf].run;
  page_count_ -= run.size() - at;
  run.drop_back(page_bytes_, run.size() - at);
}

void RadixTree::hold(NodeId id, Slot slot, Medium medium) {
  Masks& masks = nodes_[id].masks;
  if (!masks.has(slot)) holdings_[slot].note(id);
  masks.set(slot, medium);
}

void RadixTree::release(NodeId id, Slot slot, Medium medium) {
  Masks& masks = nodes_[id].masks;
  if (!masks.has(slot, medium)) return;
  masks.reset(slot, medium);
  if (!masks.has(slot)) holdings_[slot].unnote(nodes_, slot);
}

void RadixTree::release_all(NodeId id, Slot slot) {
  for (std::size_t medium = 0; medium < kMedia; ++medium) release(id, slot, static_cast<Medium>(medium));
}

std::pair<NodeId, NodeId> RadixTree::split(NodeId id, std::uint32_t at) {
  const Node& node = nodes_[id];
  if (at <= node.run.size() - at + node.child_count) return {split_head(id, at), id};
  return {id, split_tail(id, at)};
}

NodeId RadixTree::split_head(NodeId id, std::uint32_t at) {
  const NodeId parent = nodes_[id].parent;
  children_.unlink(id);
  const NodeId head = make(nodes_[id].start, view(id).part(page_bytes_, 0, at), nodes_[id].masks);
  Node& tail = nodes_[id];
  tail.run.drop_front(page_bytes_, at);
  tail.start += at;
  children_.link(parent, head);
  children_.link(head, id);
  table_.move(view(head).handles, nodes_[head].start, id, head);
  return head;
}

NodeId RadixTree::split_tail(NodeId id, std::uint32_t at) {
  const std::uint32_t rest = nodes_[id].run.size() - at;
  const NodeId tail = make(nodes_[id].start + at, view(id).part(page_bytes_, at, rest), nodes_[id].masks);
  children_.adopt(tail, id);
  nodes_[id].run.drop_back(page_bytes_, rest);
  children_.link(id, tail);
  table_.move(view(tail).handles, nodes_[tail].start, id, tail);
  return tail;
}

bool RadixTree::joinable(NodeId upper, NodeId lower) const {
  const Node& node = nodes_[upper];
  return node.parent != kNone && node.child_count == 1 && node.masks == nodes_[lower].masks;
}

void RadixTree::settle(NodeId id) {
  while (nodes_.has(id)) {
    while (nodes_[id].parent != kNone && !nodes_[id].child_count && !nodes_[id].masks.any()) {
      const NodeId parent = nodes_[id].parent;
      remove(id);
      id = parent;
    }
    if (nodes_[id].parent == kNone) {
      if (nodes_[id].is_root && !nodes_[id].child_count) drop_root(id);
      return;
    }
    // More than once only after a change at many nodes.
    for (NodeId only; (only = nodes_[id].first_child) != kNone && joinable(id, only);) id = join(id, only);
    if (!nodes_[id].child_count && !nodes_[id].masks.any()) continue;  // runs that the same clear emptied
    for (NodeId above; joinable(above = nodes_[id].parent, id);) id = join(above, id);
    return;
  }
}

void RadixTree::settle_all(const std::vector<NodeId>& nodes) {
  std::vector<NodeId> swept;
  sweeping_ = &swept;
  for (const NodeId id : nodes) settle(id);
  sweeping_ = nullptr;
  table_.discard_leaving(swept);
  for (const NodeId id : swept) forget(id);
}

NodeId RadixTree::join(NodeId upper, NodeId lower) {
  const Node& below = nodes_[lower];
  const std::uint32_t weight = below.run.size() + below.child_count;
  children_.unlink(lower);
  if (nodes_[upper].run.size() <= weight) {
    const NodeId parent = nodes_[upper].parent;
    children_.unlink(upper);
    table_.move(view(upper).handles, nodes_[upper].start, upper, lower);
    nodes_[lower].run.prepend(page_bytes_, view(upper));
    nodes_[lower].start = nodes_[upper].start;
    children_.link(parent, lower);
    forget(upper);
    return lower;
  }
  table_.move(view(lower).handles, nodes_[lower].start, lower, upper);
  nodes_[upper].run.append(page_bytes_, view(lower));
  children_.adopt(upper, lower);
  forget(lower);
  return upper;
}

NodeId RadixTree::make(std::uint32_t start, PageView pages, Masks masks) {
  const NodeId id = nodes_.make();
  Node& node = nodes_[id];
  node.start = start;
  node.run.append(page_bytes_, pages);
  node.masks = std::move(masks);
  each_holder(node.masks, [&](Slot slot) { holdings_[slot].note(id); });
  return id;
}

void RadixTree::remove(NodeId leaf) {
  children_.unlink(leaf);
  page_count_ -= nodes_[leaf].run.size();
  if (sweeping_) {
    nodes_[leaf].leaves = true;
    sweeping_->push_back(leaf);
    return;
  }
  table_.discard(leaf, 0);
  forget(leaf);
}

void RadixTree::forget(NodeId id) {
  const Masks masks = std::exchange(nodes_[id].masks, Masks{});
  each_holder(masks, [&](Slot slot) { holdings_[slot].unnote(nodes_, slot); });
  nodes_.release(id);
}

void RadixTree::drop_root(NodeId root) {
  roots_.erase(roots_.find(name_of(root)));
  names_.erase(root);
  nodes_.release(root);
}

}  // namespace kvroute::radix

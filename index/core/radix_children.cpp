#include "core/radix_children.h"

#include <cstring>

#include "core/handle_hash.h"

namespace kvroute::radix {
namespace {

constexpr std::size_t kSmallest = 16;

}  // namespace

NodeId RadixChildren::find(NodeId parent, const std::uint8_t* page) const {
  if (slots_.empty()) return kNone;
  const std::uint32_t hash = hash_of(parent, page);
  for (std::size_t at = home(hash); slots_[at].child != kNone; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].hash != hash) continue;
    const Node& child = nodes_[slots_[at].child];
    if (child.parent == parent && std::memcmp(child.run.tokens(page_bytes_), page, page_bytes_) == 0) {
      return slots_[at].child;
    }
  }
  return kNone;
}

void RadixChildren::link(NodeId parent, NodeId child) {
  Node& above = nodes_[parent];
  Node& node = nodes_[child];
  node.parent = parent;
  node.previous = kNone;
  node.next = above.first_child;
  if (node.next != kNone) nodes_[node.next].previous = child;
  above.first_child = child;
  ++above.child_count;
  if ((live_ + 1) * 5 > slots_.size() * 3) resize(slots_.empty() ? kSmallest : slots_.size() * 2);
  enter(hash_of(parent, node.run.tokens(page_bytes_)), child);
  ++live_;
}

void RadixChildren::unlink(NodeId child) {
  Node& node = nodes_[child];
  Node& above = nodes_[node.parent];
  if (node.previous != kNone) {
    nodes_[node.previous].next = node.next;
  } else {
    above.first_child = node.next;
  }
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  --above.child_count;
  erase(hash_of(node.parent, node.run.tokens(page_bytes_)), child);
  node.parent = node.next = node.previous = kNone;
  --live_;
  if (!live_) {
    slots_ = std::vector<Slot>();
  } else if (live_ * 8 < slots_.size() && slots_.size() > kSmallest) {
    resize(slots_.size() / 2);
  }
}

void RadixChildren::adopt(NodeId to, NodeId from) {
  Node& giver = nodes_[from];
  Node& taker = nodes_[to];
  for (NodeId id = giver.first_child; id != kNone; id = nodes_[id].next) {
    const std::uint8_t* page = nodes_[id].run.tokens(page_bytes_);
    erase(hash_of(from, page), id);
    enter(hash_of(to, page), id);
    nodes_[id].parent = to;
  }
  taker.first_child = giver.first_child;
  taker.child_count = giver.child_count;
  giver.first_child = kNone;
  giver.child_count = 0;
}

std::uint32_t RadixChildren::hash_of(NodeId parent, const std::uint8_t* page) const {
  return static_cast<std::uint32_t>(bytes_hash(mixed(parent), page, page_bytes_));
}

void RadixChildren::enter(std::uint32_t hash, NodeId child) {
  std::size_t at = home(hash);
  while (slots_[at].child != kNone) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, child};
}

void RadixChildren::erase(std::uint32_t hash, NodeId child) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = home(hash);
  while (slots_[hole].child != child) hole = (hole + 1) & mask;
  for (std::size_t at = (hole + 1) & mask; slots_[at].child != kNone; at = (at + 1) & mask) {
    const std::size_t distance = (at - home(slots_[at].hash)) & mask;
    if (distance < ((at - hole) & mask)) continue;  // its home lies behind the hole
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
}

void RadixChildren::resize(std::size_t size) {
  std::vector<Slot> old(size);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.child != kNone) enter(slot.hash, slot.child);
  }
}

}  // namespace kvroute::radix

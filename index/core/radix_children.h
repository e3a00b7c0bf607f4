// Which child of a node begins with which page: one table for all nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/radix_node.h"

namespace kvroute::radix {

// Open addressing with linear probing, at most 60 % full; removal moves entries back, so there are no marks. The links
// between parent and children are kept here too.
class RadixChildren {
 public:
  RadixChildren(RadixNodes& nodes, std::size_t page_bytes) : nodes_(nodes), page_bytes_(page_bytes) {}

  std::size_t size_bytes() const { return slots_.capacity() * sizeof(Slot); }

  // The child that begins with this page; kNone when there is none.
  NodeId find(NodeId parent, const std::uint8_t* page) const;

  // Hang a node below a parent that has no child with this first page.
  void link(NodeId parent, NodeId child);
  // Take a node off its parent; its first page must still be the one it was linked with.
  void unlink(NodeId child);
  // Give all children of one node to another, which has none.
  void adopt(NodeId to, NodeId from);

 private:
  struct Slot {
    std::uint32_t hash = 0;
    NodeId child = kNone;
  };

  std::uint32_t hash_of(NodeId parent, const std::uint8_t* page) const;
  std::size_t home(std::uint32_t hash) const { return hash & (slots_.size() - 1); }
  void enter(std::uint32_t hash, NodeId child);
  void erase(std::uint32_t hash, NodeId child);
  void resize(std::size_t size);

  RadixNodes& nodes_;
  std::size_t page_bytes_;
  std::vector<Slot> slots_;  // a power of two, or empty
  std::size_t live_ = 0;
};

}  // namespace kvroute::radix

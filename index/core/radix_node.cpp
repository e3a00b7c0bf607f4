#include "core/radix_node.h"

#include <stdexcept>

namespace kvroute::radix {

NodeId RadixNodes::make() {
  NodeId id = next_;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    if (id >= kMaxNodes) throw std::length_error("the radix tree has no more room for nodes");
    if (id / kChunk >= chunks_.size()) chunks_.push_back(std::make_unique<Node[]>(kChunk));
    ++next_;
  }
  ++live_;
  return id;
}

void RadixNodes::release(NodeId id) {
  (*this)[id] = Node{};
  if (--live_) {
    free_.push_back(id);
    return;
  }
  chunks_ = decltype(chunks_)();
  free_ = std::vector<NodeId>();
  next_ = 1;
}

}  // namespace kvroute::radix

#include "core/page_table.h"

#include <algorithm>

#include "core/handle_hash.h"
#include "core/memory.h"

namespace kvroute::radix {
namespace {

constexpr std::uint64_t kEmpty = 0;
constexpr std::uint64_t kDeleted = 1;  // node ids start at 1, so no entry is below 1 << 36
constexpr std::uint32_t kSmallest = 8;
constexpr std::uint32_t kAhead = 8;  // pages whose slots are fetched before they are needed

// An entry: node id in 28 bits, depth in 28, tag in 8.
std::uint64_t entry_of(NodeId node, std::uint32_t depth, std::uint64_t hash) {
  return std::uint64_t{node} << 36 | std::uint64_t{depth} << 8 | (hash >> 48 & 0xff);
}
NodeId node_of(std::uint64_t entry) { return static_cast<NodeId>(entry >> 36); }
std::uint32_t depth_of(std::uint64_t entry) { return static_cast<std::uint32_t>(entry >> 8 & (kMaxDepth - 1)); }
bool same_tag(std::uint64_t entry, std::uint64_t hash) { return (entry & 0xff) == (hash >> 48 & 0xff); }

std::size_t segment_of(std::uint64_t hash) { return hash >> 56; }
std::uint32_t home(std::uint64_t hash, std::uint32_t size) {
  return static_cast<std::uint32_t>((hash & 0xffffffff) * size >> 32);
}

// Slots for `live` entries: 1.5 to 1.9 times as many, by segment, so that they do not all grow at the same time.
std::uint32_t size_for(std::uint32_t live, std::size_t number) {
  const std::uint64_t factor = 96 + number * 26 / 256;
  return std::max(kSmallest, static_cast<std::uint32_t>(live * factor / 64 + 2));
}

}  // namespace

PageTable::PageTable(const RadixNodes& nodes) : nodes_(nodes) {}

std::size_t PageTable::size_bytes() const {
  std::size_t slots = 0;
  for (const Segment& segment : segments_) slots += segment.size;
  return slots * sizeof(std::uint64_t);
}

std::optional<Place> PageTable::find(std::int64_t handle) const {
  const std::uint64_t hash = handle_hash(handle);
  const Segment& segment = segments_[segment_of(hash)];
  if (!segment.live) return std::nullopt;
  std::uint32_t at = home(hash, segment.size);
  while (const std::uint64_t entry = segment.slots[at]) {
    if (entry != kDeleted && same_tag(entry, hash) && handle_at(entry) == handle) {
      return Place{node_of(entry), depth_of(entry) - nodes_[node_of(entry)].start};
    }
    if (++at == segment.size) at = 0;
  }
  return std::nullopt;
}

std::vector<std::uint32_t> PageTable::insert(NodeId node, std::uint32_t first, std::uint32_t last) {
  std::vector<std::uint32_t> taken;
  const Node& of = nodes_[node];
  const std::int64_t* handles = of.run.handles();
  for (std::uint32_t index = first; index < last; ++index) {
    if (last - index > kAhead) prefetch(handles[index + kAhead]);
    if (!insert_one(node, of.start + index, handles[index])) taken.push_back(index);
  }
  return taken;
}

void PageTable::move(std::span<const std::int64_t> handles, std::uint32_t depth, NodeId from, NodeId to) {
  for (const std::int64_t handle : handles) {
    const std::uint64_t hash = handle_hash(handle);
    *slot_of(hash, entry_of(from, depth, hash)) = entry_of(to, depth, hash);
    ++depth;
  }
}

void PageTable::discard(NodeId node, std::uint32_t first) {
  const Node& of = nodes_[node];
  const std::int64_t* handles = of.run.handles();
  for (std::uint32_t index = first; index < of.run.size(); ++index) {
    if (of.run.size() - index > kAhead) prefetch(handles[index + kAhead]);
    const std::uint64_t hash = handle_hash(handles[index]);
    take_out(hash, entry_of(node, of.start + index, hash));
    const Segment& segment = segments_[segment_of(hash)];
    if (std::uint64_t{segment.live} * 3 < segment.size && (segment.size > kSmallest || !segment.live)) {
      rebuild(segment_of(hash), false);
    }
  }
}

void PageTable::discard_leaving(const std::vector<NodeId>& nodes) {
  std::uint64_t count = 0;
  for (const NodeId node : nodes) count += nodes_[node].run.size();
  if (count * 2 < live_) {
    for (const NodeId node : nodes) discard(node, 0);
    return;
  }
  for (std::size_t number = 0; number < kSegments; ++number) {
    if (segments_[number].size) rebuild(number, true);
  }
  live_ -= count;
}

std::int64_t PageTable::handle_at(std::uint64_t entry) const {
  const Node& node = nodes_[node_of(entry)];
  return node.run.handle(depth_of(entry) - node.start);
}

bool PageTable::insert_one(NodeId node, std::uint32_t depth, std::int64_t handle) {
  const std::uint64_t hash = handle_hash(handle);
  Segment& segment = segments_[segment_of(hash)];
  if (!segment.size) rebuild(segment_of(hash), false);
  std::uint32_t at = home(hash, segment.size);
  while (const std::uint64_t entry = segment.slots[at]) {
    if (entry != kDeleted && same_tag(entry, hash) && handle_at(entry) == handle) return false;
    if (++at == segment.size) at = 0;
  }
  segment.slots[at] = entry_of(node, depth, hash);
  ++segment.live;
  ++live_;
  if (!--segment.room) rebuild(segment_of(hash), false);
  return true;
}

std::uint64_t* PageTable::slot_of(std::uint64_t hash, std::uint64_t entry) {
  Segment& segment = segments_[segment_of(hash)];
  std::uint32_t at = home(hash, segment.size);
  while (segment.slots[at] != entry) {
    if (++at == segment.size) at = 0;
  }
  return &segment.slots[at];
}

void PageTable::take_out(std::uint64_t hash, std::uint64_t entry) {
  Segment& segment = segments_[segment_of(hash)];
  std::uint64_t* slot = slot_of(hash, entry);
  const std::uint64_t* next = slot + 1 == segment.slots.get() + segment.size ? segment.slots.get() : slot + 1;
  if (*next == kEmpty) {
    *slot = kEmpty;  // the end of its chain: no mark is needed
    ++segment.room;
  } else {
    *slot = kDeleted;
    ++segment.deleted;
  }
  --segment.live;
  --live_;
}

void PageTable::prefetch(std::int64_t handle) const {
  const std::uint64_t hash = handle_hash(handle);
  const Segment& segment = segments_[segment_of(hash)];
  if (segment.size) fetch_ahead(&segment.slots[home(hash, segment.size)]);
}

void PageTable::rebuild(std::size_t number, bool without_leaving) {
  Segment old = std::move(segments_[number]);
  std::uint32_t live = 0;
  const auto stays = [&](std::uint64_t entry) {
    return entry > kDeleted && !(without_leaving && nodes_[node_of(entry)].leaves);
  };
  for (std::uint32_t at = 0; at < old.size; ++at) live += stays(old.slots[at]);
  Segment& segment = segments_[number] = Segment{};
  if (old.size && !live) return;
  segment.size = size_for(live, number);
  segment.slots = std::make_unique<std::uint64_t[]>(segment.size);
  segment.live = live;
  segment.room = segment.size * 4 / 5 - live;
  for (std::uint32_t from = 0; from < old.size; ++from) {
    if (!stays(old.slots[from])) continue;
    std::uint32_t at = home(handle_hash(handle_at(old.slots[from])), segment.size);
    while (segment.slots[at]) {
      if (++at == segment.size) at = 0;
    }
    segment.slots[at] = old.slots[from];
  }
}

}  // namespace kvroute::radix

#include "core/radix.h"

#include <algorithm>
#include <list>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "core/distinct.h"

namespace kvroute::radix {
namespace {

constexpr std::uint64_t kManyPages = 100'000;  // fewer are not worth the time it takes to give memory back

}  // namespace

const char* name_of(Skip skip) {
  switch (skip) {
    case Skip::kShape: return "shape";
    case Skip::kCycle: return "cycle";
    case Skip::kPlaceholder: return "placeholder";
    case Skip::kTooLong: return "too_long";
    case Skip::kUsed: break;
  }
  return "";
}

RadixIndex::RadixIndex(std::uint32_t page_size, std::uint32_t unit_bytes)
    : page_size_(page_size), unit_bytes_(unit_bytes), holdings_(std::size_t{page_size} * unit_bytes) {}

void RadixIndex::drop(Slot slot) {
  holdings_.drop(slot);
  give_back();
}

std::uint64_t RadixIndex::clear(Slot slot) {
  const std::uint64_t count = holdings_.clear(slot);
  give_back();
  return count;
}

Skip RadixIndex::store(Slot slot, const StoredPages& stored, std::string_view name, RadixDelta& delta) {
  if (stored.tokens.empty()) {
    const bool complete = holdings_.store_known(slot, stored.handles, stored.medium, delta);
    return complete ? Skip::kUsed : Skip::kPlaceholder;
  }
  if (!is_whole(stored) || !distinct(stored.handles)) return Skip::kShape;
  const auto& handles = stored.handles;
  if (stored.parent && std::find(handles.begin(), handles.end(), *stored.parent) != handles.end()) return Skip::kCycle;
  if (!holdings_.tree().has_room(0, handles.size())) return Skip::kTooLong;
  store_run(slot, {stored.parent, {handles, stored.tokens.data()}, stored.medium}, name, delta);
  most_pages_ = std::max(most_pages_, page_count());
  return Skip::kUsed;
}

void RadixIndex::remove(Slot slot, Handles handles, Medium medium, RadixDelta& delta) {
  holdings_.remove(slot, handles, medium, delta);
  if (!page_count()) give_back();
}

std::vector<Held> RadixIndex::match(std::span<const std::uint8_t> tokens, const std::vector<std::string_view>& names,
                                    const SlotSet& slots) const {
  std::vector<Held> found;
  std::size_t walked = 0;
  for (const std::string_view name : names) {
    const NodeId root = holdings_.tree().known_root(name);
    if (root == kNone) continue;
    std::vector<Held> more = match_prefix(holdings_.tree(), root, tokens, slots);
    if (!walked++) {
      found = std::move(more);
    } else {
      found.insert(found.end(), more.begin(), more.end());
    }
  }
  return walked > 1 ? deepest(std::move(found)) : found;
}

std::vector<DumpedRun> RadixIndex::dump(Slot slot) {
  RadixTree& tree = holdings_.tree();
  std::vector<NodeId> nodes = tree.held_by(slot);
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeId left, NodeId right) {
    return tree.node(left).start < tree.node(right).start;
  });
  std::vector<DumpedRun> runs;
  for (const NodeId id : nodes) {
    const Node& node = tree.node(id);
    for (std::size_t medium = 0; medium < kMedia; ++medium) {
      if (!node.masks.has(slot, static_cast<Medium>(medium))) continue;
      runs.push_back(dumped(holder(slot), node));
      runs.back().medium = static_cast<Medium>(medium);
    }
  }
  return runs;
}

// A node as the worker names its pages.
DumpedRun RadixIndex::dumped(const Holder& holder, const Node& node) const {
  const RadixTree& tree = holdings_.tree();
  DumpedRun run{};
  for (std::uint32_t index = 0; index < node.run.size(); ++index) {
    run.handles.push_back(holder.name_of(node.run.handle(index)));
  }
  const Node& parent = tree.node(node.parent);
  if (parent.is_root) {
    run.name = tree.name_of(node.parent);
  } else {
    run.parent = holder.name_of(parent.run.handle(parent.run.size() - 1));
  }
  run.tokens = {node.run.tokens(tree.page_bytes()), node.run.size() * tree.page_bytes()};
  return run;
}

void RadixIndex::restore(Slot slot, const DumpedRun& run) {
  if (run.handles.empty() || !holdings_.tree().has_room(0, run.handles.size())) return;
  RadixDelta delta;
  const RunView stored{run.parent, {run.handles, run.tokens.data()}, run.medium};
  const auto place = holdings_.below(slot, run.parent, run.name);
  if (!place) {
    holdings_.holder(slot).parked.park(stored, holdings_.tree().page_bytes());
  } else {
    holdings_.store(slot, stored, *place, delta);
  }
  most_pages_ = std::max(most_pages_, page_count());
}

std::string RadixIndex::fault() const {
  const RadixTree& tree = holdings_.tree();
  for (Slot slot = 0; holdings_.has(slot); ++slot) {
    for (std::size_t medium = 0; medium < kMedia; ++medium) {
      const std::uint64_t held = tree.held_pages(slot, static_cast<Medium>(medium));
      if (holder(slot).pages[medium] != held) return "the pages of a slot are miscounted";
    }
  }
  return tree.fault();
}

bool RadixIndex::is_whole(const StoredPages& stored) const {
  const std::size_t page_bytes = holdings_.tree().page_bytes();
  return stored.page_size == page_size_ && stored.bigrams == (unit_bytes_ == 8) &&
         stored.tokens.size() == stored.handles.size() * page_bytes;
}

// File a run, then those that were parked for it, and those that were parked for them.
void RadixIndex::store_run(Slot slot, const RunView& run, std::string_view name, RadixDelta& delta) {
  const auto place = holdings_.below(slot, run.parent, name);
  if (!place) {
    delta.orphans += run.pages.size();
    holdings_.holder(slot).parked.park(run, holdings_.tree().page_bytes());
    return;
  }
  holdings_.store(slot, run, *place, delta);
  std::list<ParkedRun> waiting = holdings_.holder(slot).parked.adopt(run.pages.handles);
  for (; !waiting.empty(); waiting.pop_front()) {
    const ParkedRun& next = waiting.front();
    const auto below = holdings_.below(slot, next.parent, name);
    if (!below) continue;
    holdings_.store(slot, next.view(), *below, delta);
    const std::vector<std::int64_t> gone(next.gone.begin(), next.gone.end());
    holdings_.remove(slot, gone, next.medium, delta);
    waiting.splice(waiting.end(), holdings_.holder(slot).parked.adopt(next.handles));
  }
}

// The C library keeps freed memory for later; after much of it was freed, others may need it.
void RadixIndex::give_back() {
  if (most_pages_ < page_count() + kManyPages) return;
  most_pages_ = page_count();
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace kvroute::radix

#include "core/radix_holdings.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "core/blake2b.h"

namespace kvroute::radix {

std::size_t Holdings::size_bytes() const {
  std::size_t bytes = tree_.size_bytes();
  for (const auto& holder : holders_) bytes += holder ? holder->size_bytes() : 0;
  return bytes;
}

void Holdings::add(Slot slot) {
  if (slot >= holders_.size()) holders_.resize(slot + 1);
  holders_[slot] = std::make_unique<Holder>();
  tree_.add(slot);
}

void Holdings::drop(Slot slot) {
  clear(slot);
  holders_[slot].reset();
  tree_.drop(slot);
}

std::uint64_t Holdings::clear(Slot slot) {
  std::uint64_t count = 0;
  for (const std::uint64_t pages : holder(slot).pages) count += pages;
  holder(slot) = Holder{};
  const std::vector<NodeId> nodes = tree_.held_by(slot);
  for (const NodeId id : nodes) tree_.release_all(id, slot);
  tree_.settle_all(nodes);
  return count;
}

std::optional<Place> Holdings::below(Slot slot, std::optional<std::int64_t> parent, std::string_view name) {
  if (!parent) return Place{tree_.root(name), 0};
  const auto place = find(slot, *parent);
  if (!place) return std::nullopt;
  return Place{place->node, place->index + 1};
}

void Holdings::store(Slot slot, const RunView& run, Place place, RadixDelta& delta) {
  std::vector<NodeId> touched;
  std::vector<std::int64_t> placed;
  std::vector<std::int64_t> rebound;
  for (std::uint32_t done = 0; done < run.pages.size();) {
    const auto [end, count] = advance(slot, run, done, place, delta);
    const Handles pages = pages_of(end.node, end.index - count, count);
    bind(slot, pages, run.pages.handles.subspan(done, count), rebound);
    placed.insert(placed.end(), pages.begin(), pages.end());
    touched.push_back(end.node);
    done += count;
    place = end;
  }
  for (const NodeId id : touched) tree_.settle(id);
  if (rebound.empty()) return;
  const std::unordered_set<std::int64_t, HandleHash> kept(placed.begin(), placed.end());
  for (const std::int64_t page : rebound) {
    if (!kept.contains(page)) evict(slot, page, delta);
  }
}

bool Holdings::store_known(Slot slot, Handles handles, Medium medium, RadixDelta& delta) {
  bool complete = true;
  for (const std::int64_t handle : handles) {
    const auto place = find(slot, handle);
    if (place) {
      tree_.settle(hold(slot, medium, *place, 1, delta).node);
    } else {
      complete = false;
    }
  }
  return complete;
}

void Holdings::remove(Slot slot, Handles handles, Medium medium, RadixDelta& delta) {
  for (std::size_t at = 0; at < handles.size();) {
    const auto place = find(slot, handles[at]);
    if (!place || !node(place->node).masks.has(slot, medium)) {
      holder(slot).parked.lose(handles[at], medium);
      ++at;
    } else {
      at += removed_run(slot, handles.subspan(at), medium, *place, delta);
    }
  }
}

// Take back the leading handles that name neighbours in one node, or one copy of each; answers how many these are.
std::uint32_t Holdings::removed_run(Slot slot, Handles handles, Medium medium, Place place, RadixDelta& delta) {
  Holder& holder = this->holder(slot);
  const std::size_t rest = node(place.node).run.size() - place.index;
  const std::size_t limit = holder.meaning.empty() ? std::min(handles.size(), rest) : 1;
  const Handles pages = pages_of(place.node, place.index, static_cast<std::uint32_t>(limit));
  std::uint32_t count = std::max(1u, shared_handles(pages, handles.first(limit)));
  if (medium == Medium::kGpu && !holder.copies.empty()) {
    if (const std::uint32_t copies = holder.drop_copies(pages.first(count))) return copies;
    count = holder.single(pages.first(count));
  }
  release(slot, medium, place, count, delta);
  return count;
}

Handles Holdings::pages_of(NodeId id, std::uint32_t first, std::uint32_t count) const {
  return {node(id).run.handles() + first, count};
}

// The page a handle means to this worker.
std::optional<Place> Holdings::find(Slot slot, std::int64_t handle) const {
  const Holder& holder = this->holder(slot);
  const auto place = tree_.table().find(holder.meant(handle));
  if (place && holder.foreign && !node(place->node).masks.has(slot)) return std::nullopt;
  return place;
}

// Hold the longest part of a run, from page `done` on, that fits one node; answers its end and its length.
Holdings::Step Holdings::advance(Slot slot, const RunView& run, std::uint32_t done, Place place, RadixDelta& delta) {
  const std::size_t page_bytes = tree_.page_bytes();
  const std::uint8_t* tokens = run.pages.tokens + done * page_bytes;
  if (place.index == node(place.node).run.size()) {
    const NodeId child = tree_.child(place.node, tokens);
    if (child == kNone) return grow(slot, run, done, place.node, delta);
    place = {child, 0};
  }
  const PageRun& there = node(place.node).run;
  const std::uint32_t limit = std::min(there.size() - place.index, run.pages.size() - done);
  const std::uint8_t* held = there.tokens(page_bytes) + place.index * page_bytes;
  if (const std::uint32_t same = shared_pages(held, tokens, limit, page_bytes)) {
    return {hold(slot, run.medium, place, same, delta), same};
  }
  const NodeId head = tree_.split(place.node, place.index).first;
  return grow(slot, run, done, head, delta);
}

// Add the rest of a run below a node: in place, if that is a leaf with the very same holders.
Holdings::Step Holdings::grow(Slot slot, const RunView& run, std::uint32_t done, NodeId id, RadixDelta& delta) {
  const std::uint32_t count = run.pages.size() - done;
  const PageView pages = run.pages.part(tree_.page_bytes(), done, count);
  const Node& above = node(id);
  const bool same = above.masks.has(slot, run.medium) && !above.masks.any_but(slot, run.medium);
  std::vector<std::uint32_t> taken;
  if (above.parent != kNone && !above.child_count && same) {
    taken = tree_.extend(id, pages);
  } else {
    std::tie(id, taken) = tree_.grow(id, pages, slot, run.medium);
  }
  for (const std::uint32_t index : taken) invent_handle(id, index);
  holder(slot).pages[static_cast<std::size_t>(run.medium)] += count;
  delta.stored += count;
  return {{id, node(id).run.size()}, count};
}

// Enter a page whose own handle means another page in the table.
void Holdings::invent_handle(NodeId id, std::uint32_t index) {
  bool free = false;
  while (!free) {
    const std::string name = "page " + std::to_string(++invented_);
    free = tree_.rename(id, index, blake2b_handle(reinterpret_cast<const std::uint8_t*>(name.data()), name.size()));
  }
}

// Let a worker's handles mean these pages; notes other pages that it holds and that it called so before.
void Holdings::bind(Slot slot, Handles pages, Handles handles, std::vector<std::int64_t>& rebound) {
  Holder& holder = this->holder(slot);
  if (shared_handles(pages, handles) == pages.size() && !holder.has_odd(handles)) return;
  for (std::size_t at = 0; at < pages.size(); ++at) {
    const std::int64_t page = pages[at], handle = handles[at];
    const bool odd = holder.meaning.contains(handle);
    if (page == handle && !odd) continue;
    if (const auto before = holder.bind(handle, page)) {
      rebound.push_back(*before);
    } else if (const auto place = odd ? std::nullopt : tree_.table().find(handle)) {
      holder.foreign = true;
      if (node(place->node).masks.has(slot) && !holder.named.contains(handle)) rebound.push_back(handle);
    }
  }
}

// Hold `count` pages of a node from an index on, cutting it to fit; answers the place after them.
Place Holdings::hold(Slot slot, Medium medium, Place place, std::uint32_t count, RadixDelta& delta) {
  Holder& holder = this->holder(slot);
  if (node(place.node).masks.has(slot, medium)) {
    if (medium == Medium::kGpu) holder.copy(pages_of(place.node, place.index, count));
    return {place.node, place.index + count};
  }
  const NodeId id = isolate(place.node, place.index, place.index + count);
  tree_.hold(id, slot, medium);
  holder.pages[static_cast<std::size_t>(medium)] += count;
  delta.stored += count;
  return {id, count};
}

// Take `count` pages of a node from an index on back from a worker that holds them in that medium once.
void Holdings::release(Slot slot, Medium medium, Place place, std::uint32_t count, RadixDelta& delta) {
  Holder& holder = this->holder(slot);
  Masks masks = node(place.node).masks;
  masks.reset(slot, medium);
  if (!masks.has(slot)) holder.unbind(pages_of(place.node, place.index, count));
  holder.pages[static_cast<std::size_t>(medium)] -= count;
  delta.removed += count;
  const Node& of = node(place.node);
  if (place.index && place.index + count == of.run.size() && !of.child_count && !masks.any()) {
    tree_.cut(place.node, place.index);
    return;
  }
  const NodeId id = isolate(place.node, place.index, place.index + count);
  tree_.release(id, slot, medium);
  tree_.settle(id);
}

// Take a page back from a worker in every medium.
void Holdings::evict(Slot slot, std::int64_t page, RadixDelta& delta) {
  holder(slot).copies.erase(page);
  for (std::size_t number = 0; number < kMedia; ++number) {
    const auto medium = static_cast<Medium>(number);
    const auto place = tree_.table().find(page);
    if (place && node(place->node).masks.has(slot, medium)) release(slot, medium, *place, 1, delta);
  }
}

// The node of exactly the pages `first` to `last` of a node.
NodeId Holdings::isolate(NodeId id, std::uint32_t first, std::uint32_t last) {
  if (first) id = tree_.split(id, first).second;
  if (last - first < node(id).run.size()) id = tree_.split(id, last - first).first;
  return id;
}

}  // namespace kvroute::radix

#include "core/radix_match.h"

#include <algorithm>

namespace kvroute::radix {
namespace {

// The workers still on the path, and where they hold it slower than on the GPU.
class Walk {
 public:
  explicit Walk(const SlotSet& slots) {
    for (std::size_t group = 0; group < slots.size(); ++group) {
      if (slots[group]) alive_.push_back({group, slots[group]});
    }
  }

  // Let those go that lack this node, which begins at `depth`; false when nobody is left.
  bool enter(const Node& node, std::uint32_t depth) {
    bool emptied = false;
    for (Alive& alive : alive_) {
      const std::uint64_t held = node.masks.held(alive.group);
      const std::uint64_t lost = alive.slots & ~held;
      if (!lost) continue;
      answer(lost, alive.group, depth);
      alive.slots &= held;
      emptied |= !alive.slots;
    }
    if (emptied) std::erase_if(alive_, [](const Alive& alive) { return !alive.slots; });
    return !alive_.empty();
  }

  // Count `pages` of the node at the fastest medium where each worker has it.
  void count(const Node& node, std::uint32_t pages) {
    for (const Alive& alive : alive_) {
      const Words& words = node.masks.group(alive.group);
      std::uint64_t open = alive.slots & ~words[0];
      for (std::size_t medium = 1; open && medium < kMedia; ++medium) {
        each_slot(open & words[medium], alive.group * 64, [&](Slot slot) { slower(slot)[medium] += pages; });
        open &= ~words[medium];
      }
    }
  }

  std::vector<Held> finish(std::uint32_t depth) {
    for (const Alive& alive : alive_) answer(alive.slots, alive.group, depth);
    return std::move(answers_);
  }

 private:
  using Counts = std::array<std::uint32_t, kMedia>;

  // 64 slots, those that are still on the path.
  struct Alive {
    std::size_t group;
    std::uint64_t slots;
  };

  Counts& slower(Slot slot) {
    if (slot >= slower_.size()) slower_.resize(slot / 64 * 64 + 64);
    return slower_[slot];
  }

  void answer(std::uint64_t slots, std::size_t group, std::uint32_t depth) {
    if (!depth) return;
    each_slot(slots, group * 64, [&](Slot slot) {
      Counts counts = slot < slower_.size() ? slower_[slot] : Counts{};
      counts[0] = depth - counts[1] - counts[2] - counts[3];
      answers_.push_back({slot, depth, counts});
    });
  }

  std::vector<Alive> alive_;
  std::vector<Counts> slower_;  // by slot; empty while nobody has anything but the GPU
  std::vector<Held> answers_;
};

}  // namespace

std::vector<Held> match_prefix(const RadixTree& tree, NodeId root, std::span<const std::uint8_t> tokens,
                               const SlotSet& slots) {
  const std::size_t page_bytes = tree.page_bytes();
  const std::size_t total = std::min<std::size_t>(tokens.size() / page_bytes, kMaxDepth);
  Walk walk(slots);
  std::uint32_t depth = 0;
  for (NodeId id = root; depth < total;) {
    const std::uint8_t* rest = tokens.data() + depth * page_bytes;
    id = tree.child(id, rest);
    if (id == kNone || !walk.enter(tree.node(id), depth)) break;
    const PageRun& run = tree.node(id).run;
    const std::size_t limit = std::min<std::size_t>(run.size(), total - depth);
    const std::uint32_t pages = shared_pages(run.tokens(page_bytes), rest, limit, page_bytes);
    walk.count(tree.node(id), pages);
    depth += pages;
    if (pages < run.size()) break;
  }
  return walk.finish(depth);
}

std::vector<Held> deepest(std::vector<Held> matches) {
  std::stable_sort(matches.begin(), matches.end(), [](const Held& left, const Held& right) {
    return left.slot != right.slot ? left.slot < right.slot : left.pages > right.pages;
  });
  const auto same = [](const Held& left, const Held& right) { return left.slot == right.slot; };
  matches.erase(std::unique(matches.begin(), matches.end(), same), matches.end());
  return matches;
}

}  // namespace kvroute::radix

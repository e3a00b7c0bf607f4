#include "core/block_match.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace kvroute {
namespace {

using Words = std::vector<std::uint64_t>;

template <class Visit>
void each_bit(const Words& words, Visit visit) {
  for (std::size_t at = 0; at < words.size(); ++at) {
    for (std::uint64_t rest = words[at]; rest != 0; rest &= rest - 1) {
      visit(static_cast<std::uint32_t>(at * 64 + static_cast<std::size_t>(std::countr_zero(rest))));
    }
  }
}

// The prompt's keys, a few blocks ahead of the walk, so that memory answers while the next ones are hashed.
class Keys {
 public:
  Keys(const PromptBlocks& prompt, const std::vector<const LargeMap*>& tables)
      : prompt_(prompt),
        tables_(tables),
        blocks_(prompt.tokens.size() / prompt.step),
        next_(prompt.root),
        scratch_(sizeof(RequestKey) + prompt.step) {}

  std::size_t blocks() const { return blocks_; }

  RequestKey at(std::size_t block) {
    while (made_ < std::min(blocks_, block + kAhead)) make_one();
    return keys_[block % kAhead];
  }

  // Where the key of this block, which `at` gave, lies in the first table, if there is one.
  const LargeMap::Place& place_of(std::size_t block) const { return places_[block % kAhead]; }

 private:
  static constexpr std::size_t kAhead = 16;

  void make_one() {
    if (extra_ < prompt_.extras.size() && prompt_.extras[extra_].first == made_) {
      next_ = extended_key(next_, prompt_.extras[extra_++].second);
    }
    next_ = child_key(next_, prompt_.tokens.data() + made_ * prompt_.step, prompt_.step, scratch_.data());
    if (tables_[0] != nullptr) places_[made_ % kAhead] = tables_[0]->prefetch(next_);
    for (std::size_t medium = 1; medium < tables_.size(); ++medium) {
      if (tables_[medium] != nullptr) tables_[medium]->prefetch(next_);
    }
    keys_[made_++ % kAhead] = next_;
  }

  const PromptBlocks& prompt_;
  const std::vector<const LargeMap*>& tables_;
  std::size_t blocks_, made_ = 0, extra_ = 0;
  RequestKey next_;
  std::array<RequestKey, kAhead> keys_{};
  std::array<LargeMap::Place, kAhead> places_{};
  std::vector<std::uint8_t> scratch_;
};

class Walk {
 public:
  Walk(const BlockHolders& holders, Words alive, std::uint32_t group)
      : bits_(holders.bits()), alive_(std::move(alive)), here_(alive_.size()), still_(alive_.size()), tables_(kMedia) {
    for (std::uint32_t medium = 0; medium < kMedia; ++medium) {
      const auto at = holders.tables().find(slot_id(group, medium));
      tables_[medium] = at != holders.tables().end() && !at->second.empty() ? &at->second : nullptr;
    }
  }

  std::vector<Depth> along(const PromptBlocks& prompt) {
    const bool any = std::any_of(tables_.begin(), tables_.end(), [](const LargeMap* one) { return one != nullptr; });
    if (!bits_.wide() && tables_[0] != nullptr && !tables_[1] && !tables_[2] && !tables_[3]) {
      tables_.resize(1);
      Keys keys(prompt, tables_);
      return along_gpu(keys);
    }
    Keys keys(prompt, tables_);
    std::size_t block = 0;
    for (; any && block < keys.blocks(); ++block) {
      step(keys.at(block));
      if (block > 0 && still_ != alive_) drop(block);
      alive_ = still_;
      if (std::all_of(alive_.begin(), alive_.end(), [](std::uint64_t word) { return word == 0; })) break;
    }
    if (block > 0) each_bit(alive_, [&](std::uint32_t number) { end(number, block); });
    return std::move(found_);
  }

 private:
  // The common case of `along`: one word of workers, all on the GPU.
  std::vector<Depth> along_gpu(Keys& keys) {
    std::uint64_t alive = alive_[0];
    std::size_t block = 0;
    found_.reserve(64);
    for (; alive != 0 && block < keys.blocks(); ++block) {
      const RequestKey key = keys.at(block);
      const PairSlot* cell = tables_[0]->find(key, keys.place_of(block));
      const std::uint64_t still = cell != nullptr ? alive & cell->value : 0;
      if (still != alive && block > 0) each_bit({alive & ~still}, [&](std::uint32_t number) { end(number, block); });
      alive = still;
    }
    if (block > 0) each_bit({alive}, [&](std::uint32_t number) { end(number, block); });
    return std::move(found_);
  }

  // Who is still there, each at its fastest medium. Blocks that lie elsewhere than on the GPU are counted one by one.
  void step(RequestKey key) {
    std::fill(still_.begin(), still_.end(), 0);
    for (std::uint32_t medium = 0; medium < kMedia; ++medium) {
      const PairSlot* cell = tables_[medium] != nullptr ? tables_[medium]->find(key) : nullptr;
      if (cell == nullptr) continue;
      bits_.among(cell->value, alive_, here_);
      for (std::size_t at = 0; at < here_.size(); ++at) {
        here_[at] &= ~still_[at];
        still_[at] |= here_[at];
      }
      if (medium > 0) each_bit(here_, [&](std::uint32_t number) { ++slower_[number][medium]; });
    }
  }

  void drop(std::size_t block) {
    for (std::size_t at = 0; at < here_.size(); ++at) here_[at] = alive_[at] & ~still_[at];
    each_bit(here_, [&](std::uint32_t number) { end(number, block); });
  }

  void end(std::uint32_t number, std::size_t blocks) {
    Depth depth{number, static_cast<std::uint32_t>(blocks), {}};
    if (const auto at = slower_.find(number); at != slower_.end()) depth.by_medium = at->second;
    depth.by_medium[0] = depth.blocks - depth.by_medium[1] - depth.by_medium[2] - depth.by_medium[3];
    found_.push_back(depth);
  }

  const HolderBits& bits_;
  Words alive_, here_, still_;
  std::vector<const LargeMap*> tables_;
  std::unordered_map<std::uint32_t, std::array<std::uint32_t, kMedia>> slower_;
  std::vector<Depth> found_;
};

}  // namespace

std::vector<Depth> walk(const BlockHolders& holders, const PromptBlocks& prompt, std::vector<std::uint64_t> alive,
                        std::uint32_t group) {
  return Walk(holders, std::move(alive), group).along(prompt);
}

}  // namespace kvroute

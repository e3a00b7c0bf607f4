#include "core/guesses.h"

#include <unordered_set>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvroute {
namespace {

std::uint64_t pair_of(std::uint64_t key, std::uint32_t worker) {
  return mixed(key ^ (worker + 1) * std::uint64_t{0x9E3779B97F4A7C15});
}

}  // namespace

void Guesses::remember(std::span<const std::uint8_t> tokens, std::string_view area, std::uint32_t worker,
                       double expires, double now) {
  for (const std::uint64_t key : keys_of(tokens, area)) {
    if (pairs_.insert(pair_of(key, worker)).second) append(key, worker, expires);
  }
  drop_old(now);
}

std::vector<Guesses::Found> Guesses::holders(std::span<const std::uint8_t> tokens, std::string_view area, double now) {
  drop_old(now);
  std::vector<Found> found;
  if (guesses_.empty()) return found;
  const std::vector<std::uint64_t> keys = keys_of(tokens, area);
  for (std::size_t length = keys.size(); length > 0; --length) {
    const ChainSlot* chain = chains_.find(keys[length - 1]);
    if (chain == nullptr) continue;
    found.push_back({ends_[length - 1], {}});
    for (std::uint64_t number = chain->first; number != 0; number = at(number).next) {
      found.back().workers.push_back(at(number).worker);
    }
  }
  return found;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Guesses::longest(std::span<const std::uint8_t> tokens,
                                                                      std::string_view area, double now) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> longest;
  std::unordered_set<std::uint32_t> seen;
  for (const Found& found : holders(tokens, area, now)) {
    for (const std::uint32_t worker : found.workers) {
      if (seen.insert(worker).second) longest.emplace_back(worker, found.tokens);
    }
  }
  return longest;
}

void Guesses::forget(std::uint32_t worker) {
  std::deque<Guess> before;
  before.swap(guesses_);
  chains_.clear();
  pairs_.clear();
  first_number_ = 1;
  for (const Guess& guess : before) {
    if (guess.worker == worker) continue;
    pairs_.insert(pair_of(guess.key, guess.worker));
    append(guess.key, guess.worker, guess.expires);
  }
}

std::vector<std::uint64_t> Guesses::keys_of(std::span<const std::uint8_t> tokens, std::string_view area) const {
  std::vector<std::uint64_t> keys;
  keys.reserve(ends_.size());
  std::uint64_t key = XXH3_64bits(area.data(), area.size());
  std::size_t start = 0;
  for (const std::uint32_t end : ends_) {
    const std::size_t until = std::size_t{end} * 4;
    if (until > tokens.size()) break;
    key = XXH3_64bits_withSeed(tokens.data() + start, until - start, key);
    keys.push_back(key);
    start = until;
  }
  return keys;
}

void Guesses::append(std::uint64_t key, std::uint32_t worker, double expires) {
  const std::uint64_t number = first_number_ + guesses_.size();
  const auto [chain, fresh] = chains_.insert(key);
  if (fresh) {
    chain->first = number;
  } else {
    at(chain->last).next = number;
  }
  chain->last = number;
  guesses_.push_back({expires, key, 0, worker});
}

void Guesses::drop_old(double now) {
  while (!guesses_.empty() && (guesses_.front().expires <= now || guesses_.size() > limit_)) drop_oldest();
}

void Guesses::drop_oldest() {
  const Guess& oldest = guesses_.front();
  ChainSlot* chain = chains_.find(oldest.key);
  pairs_.erase(pair_of(oldest.key, oldest.worker));
  if (oldest.next == 0) {
    chains_.erase(oldest.key);
  } else {
    chain->first = oldest.next;
  }
  guesses_.pop_front();
  ++first_number_;
}

}  // namespace kvroute

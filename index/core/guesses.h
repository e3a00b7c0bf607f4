// Guesses of router/predictions.py: which worker will soon hold a prefix because a prompt with it was just sent there.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/flat_table.h"

namespace kvroute {

// Prefixes are named by chained XXH3-64 keys of the spans between `ends`; workers are numbers.
class Guesses {
 public:
  struct Found {
    std::uint32_t tokens;
    std::vector<std::uint32_t> workers;
  };

  // `ends`: prefix lengths in tokens, ascending. At most `limit` guesses are kept, the oldest go first.
  Guesses(std::vector<std::uint32_t> ends, std::size_t limit) : ends_(std::move(ends)), limit_(limit) {}

  std::size_t size() const { return guesses_.size(); }
  void remember(std::span<const std::uint8_t> tokens, std::string_view area, std::uint32_t worker, double expires,
                double now);
  // Who is guessed to hold the prompt's prefixes, the longest prefix first; of one prefix in the order they came.
  std::vector<Found> holders(std::span<const std::uint8_t> tokens, std::string_view area, double now);
  // The same by worker, each with its longest prefix in tokens, in the order that `holders` names them first.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> longest(std::span<const std::uint8_t> tokens,
                                                               std::string_view area, double now);
  void forget(std::uint32_t worker);

 private:
  struct Guess {
    double expires;
    std::uint64_t key;
    std::uint64_t next;  // the number of the next one of the same key; 0: it is the last
    std::uint32_t worker;
  };
  // Guesses are numbered from 1 in the order they came. Slots of the table are zero when new.
  struct ChainSlot {
    std::uint64_t key, first, last;
  };

  Guess& at(std::uint64_t number) { return guesses_[number - first_number_]; }
  std::vector<std::uint64_t> keys_of(std::span<const std::uint8_t> tokens, std::string_view area) const;
  void append(std::uint64_t key, std::uint32_t worker, double expires);
  void drop_old(double now);
  void drop_oldest();

  std::vector<std::uint32_t> ends_;
  std::size_t limit_;
  std::deque<Guess> guesses_;
  std::uint64_t first_number_ = 1;
  FlatTable<ChainSlot> chains_;
  KeySet pairs_;  // of key and worker, folded to 64 bits: so that a prefix which many share is not walked
};

}  // namespace kvroute

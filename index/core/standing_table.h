// The numbers of router/standing_table.py: what candidates are compared by when none has a better prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvroute {

// One candidate's load for comparing, its assignments as of the last one, when that was, what one more would add, and
// until when all this stays as it is.
struct StandingNumbers {
  double rank, share, last, one, until;
};

// Candidates are named by their place, from 0.
class StandingTable {
 public:
  explicit StandingTable(std::size_t count) : numbers_(count) {}

  std::size_t size() const { return numbers_.size(); }
  StandingNumbers& at(std::size_t place) { return numbers_[place]; }
  double least_rank() const;
  double least_until() const;
  // Those that do not stay as they are beyond `now`.
  std::vector<std::uint32_t> over(double now) const;
  // Of some places, those of the least rank; of these, with the fewest assignments, then longest without one.
  std::vector<std::uint32_t> due(std::span<const std::uint32_t> places, double now, double half_life_s) const;
  std::vector<std::uint32_t> due_of_all(double now, double half_life_s) const;

 private:
  std::vector<StandingNumbers> numbers_;
};

}  // namespace kvroute

#include "core/standing_table.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvroute {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The operations, and their order, are those of the Python form: equal numbers must be equal to the last bit.
double faded(const StandingNumbers& one, double now, double half_life_s) {
  return one.share != 0 ? one.share * std::exp2((one.last - now) / half_life_s) : 0.0;
}

}  // namespace

double StandingTable::least_rank() const {
  double least = kInfinity;
  for (const StandingNumbers& one : numbers_) least = one.rank < least ? one.rank : least;
  return least;
}

double StandingTable::least_until() const {
  double least = kInfinity;
  for (const StandingNumbers& one : numbers_) least = one.until < least ? one.until : least;
  return least;
}

std::vector<std::uint32_t> StandingTable::over(double now) const {
  std::vector<std::uint32_t> over;
  for (std::uint32_t place = 0; place < numbers_.size(); ++place) {
    if (numbers_[place].until <= now) over.push_back(place);
  }
  return over;
}

std::vector<std::uint32_t> StandingTable::due(std::span<const std::uint32_t> places, double now,
                                              double half_life_s) const {
  double least = kInfinity;
  for (const std::uint32_t place : places) least = numbers_[place].rank < least ? numbers_[place].rank : least;
  std::vector<std::uint32_t> due;
  std::pair<double, double> first;
  for (const std::uint32_t place : places) {
    const StandingNumbers& one = numbers_[place];
    if (one.rank != least) continue;
    const std::pair<double, double> turn{faded(one, now, half_life_s) + one.one, one.last};
    if (due.empty() || turn < first) {
      first = turn;
      due.clear();
    }
    if (turn == first) due.push_back(place);
  }
  return due;
}

std::vector<std::uint32_t> StandingTable::due_of_all(double now, double half_life_s) const {
  std::vector<std::uint32_t> places(numbers_.size());
  std::iota(places.begin(), places.end(), 0);
  return due(places, now, half_life_s);
}

}  // namespace kvroute

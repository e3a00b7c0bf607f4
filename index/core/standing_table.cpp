#include "core/standing_table.h"

#include <algorithm>
#include <cmath>

namespace kvroute {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The operations, and their order, are those of the Python form: equal numbers must be equal to the last bit.
double faded(const StandingRow& row, double now, double half_life_s) {
  return row.share != 0 ? row.share * std::exp2((row.last - now) / half_life_s) : 0.0;
}

// Per number of tokens saved, the shortest queue.
using Shortest = std::vector<std::pair<double, double>>;

void shorten(Shortest& shortest, double saved, double backlog) {
  for (auto& [of, least] : shortest) {
    if (of == saved) {
      least = std::min(least, backlog);
      return;
    }
  }
  shortest.emplace_back(saved, backlog);
}

// `_loses` of router/backlog.py.
bool loses(double backlog, double saved, const Shortest& shortest, double weight) {
  return std::any_of(shortest.begin(), shortest.end(), [&](const auto& other) {
    return weight * (backlog - other.second) > std::max(0.0, saved - other.first);
  });
}

}  // namespace

double StandingTable::least_rank() const {
  double least = kInfinity;
  for (const StandingRow& row : rows_) least = std::min(least, row.rank);
  return least;
}

double StandingTable::least_until() const {
  double least = kInfinity;
  for (const StandingRow& row : rows_) least = std::min(least, row.until);
  return least;
}

StandingTable::Places StandingTable::over(double now) const {
  Places over;
  for (std::uint32_t place = 0; place < rows_.size(); ++place) {
    if (rows_[place].until <= now) over.push_back(place);
  }
  return over;
}

void StandingTable::weigh(const std::vector<std::pair<std::uint32_t, double>>& saved, double prompt_tokens,
                          double weight) {
  unweigh();
  weighed_ = true;
  std::vector<double> tokens(rows_.size());
  for (const auto& [place, count] : saved) tokens[place] = count;
  Shortest shortest;
  double least = kInfinity;
  for (std::size_t place = 0; place < rows_.size(); ++place) {
    if (held(place)) continue;
    shorten(shortest, tokens[place], rows_[place].backlog);
    least = std::min(least, rows_[place].backlog);
  }
  for (std::size_t place = 0; place < rows_.size(); ++place) {
    const double backlog = rows_[place].backlog;
    if (held(place) || !(backlog > least + prompt_tokens)) continue;
    outweighed_[place] = loses(backlog - prompt_tokens, tokens[place], shortest, weight);
  }
}

void StandingTable::unweigh() {
  if (weighed_) outweighed_.assign(rows_.size(), false);
  weighed_ = false;
}

StandingTable::Places StandingTable::due(Places places, double now, double half_life_s) const {
  double shortest = kInfinity, least = kInfinity;
  if (weighed_) {
    for (const std::uint32_t place : places) shortest = std::min(shortest, rows_[place].backlog);
    std::erase_if(places, [&](std::uint32_t place) { return rows_[place].backlog != shortest; });
  }
  for (const std::uint32_t place : places) least = std::min(least, rows_[place].rank);
  Places due;
  std::pair<double, double> first;
  for (const std::uint32_t place : places) {
    const StandingRow& row = rows_[place];
    if (row.rank != least) continue;
    const std::pair<double, double> turn{faded(row, now, half_life_s) + row.one, row.last};
    if (due.empty() || turn < first) {
      first = turn;
      due.clear();
    }
    if (turn == first) due.push_back(place);
  }
  return due;
}

StandingTable::Places StandingTable::due_of_all(double now, double half_life_s) const {
  Places places;
  for (std::uint32_t place = 0; place < rows_.size(); ++place) {
    if (!weighed_ || !held(place)) places.push_back(place);
  }
  return due(std::move(places), now, half_life_s);
}

}  // namespace kvroute

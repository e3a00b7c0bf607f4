#include "core/standing_table.h"

#include <algorithm>
#include <cmath>

namespace kvroute {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

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

double or_zero(double number) { return std::isnan(number) ? 0.0 : number; }

// `rank_of` of router/load_guard.py; `average` is NaN where no engine reports.
double rank_of(const StandingSight& sight, double average) {
  if (!std::isnan(sight.report)) return sight.report;
  return std::max(std::isnan(average) ? sight.recent : average, or_zero(sight.running));
}

// `next_time` of router/load_guard.py, one time after the other.
void come_first(double& first, double time, double now) {
  constexpr double kMargin = 1e-6;
  if (now <= time + kMargin && time - kMargin < first) first = time - kMargin;
}

}  // namespace

// `look` of router/load_guard.py, and the row that router/standing_table.py makes of it.
void StandingTable::look(std::size_t place, AssignmentBook* book, double now, bool ends_reported) {
  const auto& [requests, sampled_at, weight] = told_[place];
  const bool sampled = !std::isnan(sampled_at);
  const bool told = !std::isnan(requests) && !(sampled && now - sampled_at > settings_.load_stale);
  const bool windowed = !told || !sampled;
  const double since = windowed ? now - settings_.load_window : sampled_at;
  const AssignmentBook::Seen seen = book != nullptr ? book->seen(now, since) : AssignmentBook::Seen{};
  StandingSight sight;
  sight.until = kInfinity;
  come_first(sight.until, seen.oldest + settings_.assignment_ttl, now);
  come_first(sight.until, seen.oldest_prefill + settings_.prefill_ttl, now);
  if (windowed) come_first(sight.until, seen.oldest_new + settings_.load_window, now);
  if (sampled) come_first(sight.until, sampled_at + settings_.load_stale, now);
  if (told) sight.report = (requests + seen.cost) / weight;
  if (ends_reported) sight.running = static_cast<double>(seen.running) / weight;
  sight.recent = seen.cost / weight;
  sight.backlog = static_cast<double>(seen.prefill) / weight;
  unreported_ += !told;
  unreported_ -= std::isnan(sights_[place].report);
  sights_[place] = sight;
  const double share = book != nullptr ? book->share() : 0.0, last = book != nullptr ? book->last() : -kInfinity;
  const double known = told ? sight.report : or_zero(sight.running);
  rows_[place] = {rank_of(sight, kNone), known, sight.backlog, share, last, 1 / weight, sight.until};
}

double StandingTable::settle() {
  const bool mixed = unreported_ > 0 && unreported_ < rows_.size();
  if (mixed || unreported_ != unreported_before_) rank_anew();
  unreported_before_ = unreported_;
  double rank = kInfinity, until = kInfinity;
  for (const StandingRow& row : rows_) {
    rank = std::min(rank, row.rank);
    until = std::min(until, row.until);
  }
  limit_ = std::max(settings_.guard_floor, settings_.guard_multiple * (rank + 1));
  return until;
}

// Where only some engines report, the others count by the average of those.
void StandingTable::rank_anew() {
  double total = 0;
  std::size_t count = 0;
  for (const StandingSight& sight : sights_) {
    if (std::isnan(sight.report)) continue;
    total += sight.report;
    ++count;
  }
  const double average = count > 0 ? total / static_cast<double>(count) : kNone;
  for (std::size_t place = 0; place < rows_.size(); ++place) rows_[place].rank = rank_of(sights_[place], average);
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

// The numbers of router/standing_table.py: what candidates are compared by when none has a better prefix.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/assignment_book.h"

namespace kvroute {

// As the Python form says.
struct StandingRow {
  double rank = 0, known = 0, backlog = 0, share = 0, last = -std::numeric_limits<double>::infinity(), one = 0;
  double until = -std::numeric_limits<double>::infinity();
};

// `Told` and `Sight` of router/load_guard.py; NaN is None.
struct StandingTold {
  double requests = std::numeric_limits<double>::quiet_NaN(), sampled_at = std::numeric_limits<double>::quiet_NaN();
  double weight = 1;
};

struct StandingSight {
  double report = std::numeric_limits<double>::quiet_NaN(), running = std::numeric_limits<double>::quiet_NaN();
  double recent = 0, backlog = 0, until = -std::numeric_limits<double>::infinity();
};

// Of `RouterSettings`; times in seconds.
struct StandingSettings {
  double load_window, load_stale, assignment_ttl, prefill_ttl, guard_floor, guard_multiple;
};

// Candidates are named by their place, from 0.
class StandingTable {
 public:
  using Places = std::vector<std::uint32_t>;

  StandingTable(std::size_t count, const StandingSettings& settings)
      : settings_(settings), told_(count), sights_(count), rows_(count), unreported_(count), outweighed_(count) {}

  std::size_t size() const { return rows_.size(); }
  const StandingRow& at(std::size_t place) const { return rows_[place]; }
  StandingTold& told(std::size_t place) { return told_[place]; }
  // Writes one row; `settle` must follow before anything is read.
  void look(std::size_t place, AssignmentBook* book, double now, bool ends_reported);
  // Ranks and the limit after some looks. Returns the first time at which a row may be another.
  double settle();
  Places over(double now) const;
  // `saved`: pairs of place and tokens; zero where a place is left out.
  void weigh(const std::vector<std::pair<std::uint32_t, double>>& saved, double prompt_tokens, double weight);
  void unweigh();
  bool held(std::size_t place) const { return rows_[place].known > limit_ || outweighed_[place]; }
  Places due(Places places, double now, double half_life_s) const;
  Places due_of_all(double now, double half_life_s) const;

 private:
  void rank_anew();

  StandingSettings settings_;
  std::vector<StandingTold> told_;
  std::vector<StandingSight> sights_;
  std::vector<StandingRow> rows_;
  std::size_t unreported_, unreported_before_ = 0;
  double limit_ = std::numeric_limits<double>::infinity();
  std::vector<bool> outweighed_;
  bool weighed_ = false;
};

}  // namespace kvroute

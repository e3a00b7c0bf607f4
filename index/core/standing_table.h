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
  double rank = 0, known = 0, backlog = 0, share = 0, last = -std::numeric_limits<double>::infinity(), one = 0, until = 0;
};

// `Told` and `Sight` of router/load_guard.py; NaN is None.
struct StandingTold {
  double requests = std::numeric_limits<double>::quiet_NaN(), sampled_at = std::numeric_limits<double>::quiet_NaN();
  double weight = 1;
};

struct StandingSight {
  double report, running, recent, backlog, until;
};

// Of `RouterSettings`, in seconds.
struct StandingTimes {
  double load_window, load_stale, assignment_ttl, prefill_ttl;
};

// Candidates are named by their place, from 0.
class StandingTable {
 public:
  using Places = std::vector<std::uint32_t>;

  StandingTable(std::size_t count, const StandingTimes& times) : times_(times), told_(count), rows_(count), outweighed_(count) {}

  double limit = std::numeric_limits<double>::infinity();

  std::size_t size() const { return rows_.size(); }
  StandingRow& at(std::size_t place) { return rows_[place]; }
  StandingTold& told(std::size_t place) { return told_[place]; }
  StandingSight look(std::size_t place, AssignmentBook* book, double now, bool ends_reported);
  double least_rank() const;
  double least_until() const;
  Places over(double now) const;
  // `saved`: pairs of place and tokens; zero where a place is left out.
  void weigh(const std::vector<std::pair<std::uint32_t, double>>& saved, double prompt_tokens, double weight);
  void unweigh();
  bool held(std::size_t place) const { return rows_[place].known > limit || outweighed_[place]; }
  Places due(Places places, double now, double half_life_s) const;
  Places due_of_all(double now, double half_life_s) const;

 private:
  StandingTimes times_;
  std::vector<StandingTold> told_;
  std::vector<StandingRow> rows_;
  std::vector<bool> outweighed_;
  bool weighed_ = false;
};

}  // namespace kvroute

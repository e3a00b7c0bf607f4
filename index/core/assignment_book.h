// One worker's assigned requests, by the rules of router/assignment_book.py.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>

namespace kvroute {

class AssignmentBook {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Seen {
    double cost = 0;
    std::int64_t running = 0, prefill = 0;
    double oldest = kNever, oldest_new = kNever, oldest_prefill = kNever;
  };

  AssignmentBook(double ttl_s, double prefill_ttl_s, double half_life_s)
      : ttl_s_(ttl_s), prefill_ttl_s_(prefill_ttl_s), half_life_s_(half_life_s) {}

  std::uint64_t add(double at, double cost, std::int64_t prefill, double one);
  bool end(std::uint64_t number);
  bool end_prefill(std::uint64_t number);
  Seen seen(double now, double since);
  std::int64_t prefill_tokens(double now);
  double share() const { return share_; }
  double last() const { return last_; }
  double faded(double now) const;

 private:
  struct Request {
    double at, cost;
    std::int64_t prefill;
    bool finished = false, prefilled = false;
  };

  std::uint64_t next() const { return first_ + requests_.size(); }
  Request& of(std::uint64_t number) { return requests_[number - first_]; }
  bool knows(std::uint64_t number) const { return number >= first_ && number < next(); }
  void expire(double now);
  void recount(double since);

  double ttl_s_, prefill_ttl_s_, half_life_s_;
  std::deque<Request> requests_;
  // Numbers: of the oldest request that is kept, of the first new one, of the first whose prefill is not known done.
  std::uint64_t first_ = 0, first_new_ = 0, first_prefill_ = 0;
  double since_ = kNever, cost_ = 0;
  std::int64_t running_ = 0, prefill_ = 0;
  double share_ = 0, last_ = -kNever;
};

}  // namespace kvroute

#include "core/assignment_book.h"

#include <algorithm>
#include <cmath>

namespace kvroute {

std::uint64_t AssignmentBook::add(double at, double cost, std::int64_t prefill, double one) {
  expire(at);
  const std::uint64_t number = next();
  requests_.push_back({at, cost, prefill});
  if (at >= since_) {
    cost_ += cost;
  } else {
    first_new_ = next();
  }
  ++running_;
  prefill_ += prefill;
  share_ = faded(at) + one;
  last_ = at;
  return number;
}

bool AssignmentBook::end(std::uint64_t number) {
  if (!knows(number)) return false;
  end_prefill(number);
  Request& request = of(number);
  if (request.finished) return false;
  request.finished = true;
  --running_;
  if (request.at >= since_) cost_ -= request.cost;
  return true;
}

bool AssignmentBook::end_prefill(std::uint64_t number) {
  if (!knows(number) || of(number).prefilled) return false;
  of(number).prefilled = true;
  prefill_ -= of(number).prefill;
  return true;
}

AssignmentBook::Seen AssignmentBook::seen(double now, double since) {
  expire(now);
  if (since < since_) recount(since);
  since_ = since;
  for (; first_new_ < next(); ++first_new_) {
    const Request& request = of(first_new_);
    if (!request.finished && request.at >= since) break;
    if (!request.finished) cost_ -= request.cost;
  }
  return {cost_,
          running_,
          prefill_,
          requests_.empty() ? kNever : requests_.front().at,
          first_new_ < next() ? of(first_new_).at : kNever,
          first_prefill_ < next() ? of(first_prefill_).at : kNever};
}

std::int64_t AssignmentBook::prefill_tokens(double now) {
  expire(now);
  return prefill_;
}

double AssignmentBook::faded(double now) const {
  return share_ != 0 ? share_ * std::exp2((last_ - now) / half_life_s_) : 0.0;
}

void AssignmentBook::expire(double now) {
  const double oldest = now - ttl_s_;
  while (!requests_.empty() && (requests_.front().finished || requests_.front().at <= oldest)) {
    end(first_);
    requests_.pop_front();
    ++first_;
  }
  first_new_ = std::max(first_new_, first_);
  first_prefill_ = std::max(first_prefill_, first_);
  for (; first_prefill_ < next(); ++first_prefill_) {
    const Request& request = of(first_prefill_);
    if (!request.prefilled && now - request.at < prefill_ttl_s_) break;
    end_prefill(first_prefill_);
  }
}

// Start over where `since` went back: requests that were let go of count again.
void AssignmentBook::recount(double since) {
  first_new_ = next();
  cost_ = 0;
  while (first_new_ > first_ && of(first_new_ - 1).at >= since) {
    --first_new_;
    if (!of(first_new_).finished) cost_ += of(first_new_).cost;
  }
}

}  // namespace kvroute

// Requests by id, by the rules of router/request_log.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/assignment_book.h"

namespace kvroute {

// A request's id: up to 31 bytes, then zeros, then how many they are.
class RequestId {
 public:
  static constexpr std::size_t kMostBytes = 31;

  static std::optional<RequestId> of(std::string_view text) {
    if (text.size() > kMostBytes) return std::nullopt;
    RequestId id;
    std::memcpy(id.bytes_.data(), text.data(), text.size());
    id.bytes_.back() = static_cast<char>(text.size());
    return id;
  }

  bool operator==(const RequestId&) const = default;

  struct Hash {
    std::size_t operator()(const RequestId& id) const { return XXH3_64bits(id.bytes_.data(), id.bytes_.size()); }
  };

 private:
  std::array<char, kMostBytes + 1> bytes_{};
};

// `Owner` is whatever is kept of a request beside its number, and has `book()`: the AssignmentBook it is in. Who calls a
// deed is told the owners of requests that it ended by `ended(owner)`.
template <class Owner>
class RequestLog {
 public:
  struct Request {
    double at;
    std::uint64_t number;
    Owner owner;
  };

  RequestLog(std::size_t limit, double ttl_s, double least_cost) : limit_(limit), ttl_s_(ttl_s), least_cost_(least_cost) {
    requests_.reserve(std::min(limit_, kMostReserved) + 1);  // so that it need not grow while everything waits
  }

  std::size_t size() const { return requests_.size(); }

  template <class Ended>
  void add(const RequestId& id, Owner owner, double at, double weight, std::int64_t prompt, std::int64_t reusable,
           Ended ended) {
    const auto known = requests_.find(id);
    if (known != requests_.end()) {
      order_.erase(std::find(order_.begin(), order_.end(), &*known));
      drop(known, ended);
    }
    const std::uint64_t number =
        owner.book().add(at, cost_of(prompt, reusable), std::max<std::int64_t>(prompt - reusable, 0), 1 / weight);
    order_.push_back(&*requests_.emplace(id, Request{at, number, std::move(owner)}).first);
    while (requests_.size() > limit_) drop_oldest(ended);
  }

  Request* find(const RequestId& id) {
    const auto found = requests_.find(id);
    return found == requests_.end() ? nullptr : &found->second;
  }

  template <class Ended>
  void expire(double now, Ended ended) {
    while (!order_.empty() && now - oldest_at() >= ttl_s_) drop_oldest(ended);
  }

  double oldest_at() const {
    return order_.empty() ? std::numeric_limits<double>::infinity() : order_.front()->second.at;
  }

 private:
  using Requests = std::unordered_map<RequestId, Request, RequestId::Hash>;
  static constexpr std::size_t kMostReserved = 1 << 20;

  // Whole multiples of 2^-32: their sums are exact.
  double cost_of(std::int64_t prompt, std::int64_t reusable) const {
    constexpr double kSteps = 4294967296.0;
    const double whole = prompt != 0 ? 1 - static_cast<double>(reusable) / static_cast<double>(prompt) : 1.0;
    return std::nearbyint(std::max(whole, least_cost_) * kSteps) / kSteps;
  }

  template <class Ended>
  void drop_oldest(Ended& ended) {
    const RequestId id = order_.front()->first;
    order_.pop_front();
    drop(requests_.find(id), ended);
  }

  template <class Ended>
  void drop(typename Requests::iterator which, Ended& ended) {
    Request request = std::move(which->second);
    requests_.erase(which);
    if (request.owner.book().end(request.number)) ended(request.owner);
  }

  std::size_t limit_;
  double ttl_s_, least_cost_;
  Requests requests_;
  std::deque<typename Requests::value_type*> order_;  // the oldest first
};

}  // namespace kvroute

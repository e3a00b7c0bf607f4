// What router/ keeps in the native core: guesses, assigned requests, and the numbers of its standing candidates.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <limits>

#include "core/assignment_book.h"
#include "core/bind_module.h"
#include "core/guesses.h"
#include "core/standing_table.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

std::string_view text_of(const nb::bytes& value) { return {value.c_str(), value.size()}; }

nb::list holders(Guesses& guesses, const nb::bytes& tokens, const nb::bytes& area, double now) {
  nb::list found;
  for (const Guesses::Found& one : guesses.holders(bytes_of(tokens), text_of(area), now)) {
    found.append(nb::make_tuple(one.tokens, one.workers));
  }
  return found;
}

nb::list longest(Guesses& guesses, const nb::bytes& tokens, const nb::bytes& area, double now) {
  nb::list found;
  for (const auto& [worker, length] : guesses.longest(bytes_of(tokens), text_of(area), now)) {
    found.append(nb::make_tuple(worker, length));
  }
  return found;
}

std::size_t checked(const StandingTable& table, std::size_t place) {
  if (place >= table.size()) throw nb::index_error("no such place");
  return place;
}

double or_nan(const nb::handle& number) {
  return number.is_none() ? std::numeric_limits<double>::quiet_NaN() : nb::cast<double>(number);
}

void tell(StandingTable& table, std::size_t place, const nb::tuple& told) {
  if (told.size() != 3) throw nb::value_error("what is told has three numbers");
  table.told(checked(table, place)) = {or_nan(told[0]), or_nan(told[1]), nb::cast<double>(told[2])};
}

double look(StandingTable& table, const nb::dict& books, double now, bool ends_reported) {
  for (const auto [place, book] : books) checked(table, nb::cast<std::size_t>(place));
  for (const auto [place, book] : books) {
    auto* const of_place = book.is_none() ? nullptr : nb::cast<AssignmentBook*>(book);
    table.look(nb::cast<std::size_t>(place), of_place, now, ends_reported);
  }
  return table.settle();
}

void weigh(StandingTable& table, const nb::dict& saved, double prompt_tokens, double weight) {
  std::vector<std::pair<std::uint32_t, double>> pairs;
  for (const auto [key, tokens] : saved) {
    const auto place = nb::cast<std::uint32_t>(key);
    checked(table, place);
    pairs.emplace_back(place, nb::cast<double>(tokens));
  }
  table.weigh(pairs, prompt_tokens, weight);
}

nb::list listed(const std::vector<std::uint32_t>& places) {
  nb::list list;
  for (const std::uint32_t place : places) list.append(place);
  return list;
}

nb::list due(StandingTable& table, const nb::object& places, double now, double half_life_s) {
  if (places.is_none()) return listed(table.due_of_all(now, half_life_s));
  auto some = nb::cast<std::vector<std::uint32_t>>(places);
  for (const std::uint32_t place : some) checked(table, place);
  return listed(table.due(std::move(some), now, half_life_s));
}

}  // namespace

void bind_decision(nb::module_& module) {
  nb::class_<Guesses>(module, "Guesses")
      .def(nb::init<std::vector<std::uint32_t>, std::size_t>(), nb::arg("ends"), nb::arg("limit"))
      .def("__len__", &Guesses::size)
      .def("remember",
           [](Guesses& self, const nb::bytes& tokens, const nb::bytes& area, std::uint32_t worker, double expires,
              double now) { self.remember(bytes_of(tokens), text_of(area), worker, expires, now); })
      .def("holders", &holders)
      .def("longest", &longest)
      .def("forget", &Guesses::forget);
  nb::class_<AssignmentBook>(module, "AssignmentBook")
      .def(nb::init<double, double, double>(), nb::arg("ttl_s"), nb::arg("prefill_ttl_s"), nb::arg("half_life_s"))
      .def("add", &AssignmentBook::add)
      .def("end", &AssignmentBook::end)
      .def("end_prefill", &AssignmentBook::end_prefill)
      .def("seen",
           [](AssignmentBook& self, double now, double since) {
             const auto [cost, running, prefill, oldest, oldest_new, oldest_prefill] = self.seen(now, since);
             return nb::make_tuple(cost, running, prefill, oldest, oldest_new, oldest_prefill);
           })
      .def("prefill_tokens", &AssignmentBook::prefill_tokens)
      .def_prop_ro("share", &AssignmentBook::share)
      .def_prop_ro("last", &AssignmentBook::last)
      .def("faded", &AssignmentBook::faded);
  nb::class_<StandingTable>(module, "StandingTable")
      .def("__init__",
           [](StandingTable* self, std::size_t count, double load_window_s, double load_stale_s, double assignment_ttl_s,
              double prefill_ttl_s, double guard_floor, double guard_multiple) {
             new (self) StandingTable(count, {load_window_s, load_stale_s, assignment_ttl_s, prefill_ttl_s, guard_floor,
                                              guard_multiple});
           })
      .def("tell", &tell)
      .def("look", &look)
      .def("ranks",
           [](StandingTable& self) {
             nb::list ranks;
             for (std::size_t place = 0; place < self.size(); ++place) ranks.append(self.at(place).rank);
             return ranks;
           })
      .def("over", [](const StandingTable& self, double now) { return listed(self.over(now)); })
      .def("weigh", &weigh)
      .def("unweigh", &StandingTable::unweigh)
      .def("held",
           [](const StandingTable& self, std::size_t place) { return self.held(checked(self, place)); })
      .def("due", &due, nb::arg("places").none(), nb::arg("now"), nb::arg("half_life_s"));
}

}  // namespace kvroute

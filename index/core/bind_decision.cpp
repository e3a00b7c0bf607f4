// What router/ keeps in the native core: guesses, and the numbers of its standing candidates.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/bind_module.h"
#include "core/guesses.h"
#include "core/standing_table.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

std::span<const std::uint8_t> bytes_of(const nb::bytes& value) {
  return {static_cast<const std::uint8_t*>(value.data()), value.size()};
}

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

StandingNumbers& checked(StandingTable& table, std::size_t place) {
  if (place >= table.size()) throw nb::index_error("no such place");
  return table.at(place);
}

nb::list listed(const std::vector<std::uint32_t>& places) {
  nb::list list;
  for (const std::uint32_t place : places) list.append(place);
  return list;
}

nb::list due(StandingTable& table, const nb::object& places, double now, double half_life_s) {
  if (places.is_none()) return listed(table.due_of_all(now, half_life_s));
  const auto some = nb::cast<std::vector<std::uint32_t>>(places);
  for (const std::uint32_t place : some) checked(table, place);
  return listed(table.due(some, now, half_life_s));
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
  nb::class_<StandingTable>(module, "StandingTable")
      .def(nb::init<std::size_t>(), nb::arg("count"))
      .def("put",
           [](StandingTable& self, std::size_t place, const std::tuple<double, double, double, double, double>& row) {
             const auto [rank, share, last, one, until] = row;
             checked(self, place) = {rank, share, last, one, until};
           })
      .def("rank", [](StandingTable& self, std::size_t place, double rank) { checked(self, place).rank = rank; })
      .def("ranks",
           [](StandingTable& self) {
             nb::list ranks;
             for (std::size_t place = 0; place < self.size(); ++place) ranks.append(self.at(place).rank);
             return ranks;
           })
      .def("least_rank", &StandingTable::least_rank)
      .def("least_until", &StandingTable::least_until)
      .def("over", [](const StandingTable& self, double now) { return listed(self.over(now)); })
      .def("due", &due, nb::arg("places").none(), nb::arg("now"), nb::arg("half_life_s"));
}

}  // namespace kvroute

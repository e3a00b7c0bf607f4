// The log of routed requests, whose workers, books and notes are Python's objects.
#include <nanobind/nanobind.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/bind_module.h"
#include "core/request_log.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

struct Sent {
  nb::object worker, kept_book, note;
  AssignmentBook* own;
  AssignmentBook& book() const { return *own; }
};

using Log = RequestLog<Sent>;

std::optional<RequestId> id_of(const nb::str& text) {
  const std::optional<std::string_view> bytes = utf8_of(text);
  return bytes ? RequestId::of(*bytes) : std::nullopt;
}

Log::Request* find(Log& log, const nb::str& text) {
  const std::optional<RequestId> id = id_of(text);
  return id ? log.find(*id) : nullptr;
}

// One tuple for all: most calls change nothing.
nb::object listed(const std::vector<nb::object>& workers) {
  if (workers.empty()) return nb::tuple();
  nb::list list;
  for (const nb::object& worker : workers) list.append(worker);
  return list;
}

nb::object add(Log& log, const nb::str& request_id, nb::object worker, nb::object book, double at, double weight,
               std::int64_t prompt, std::int64_t reusable, nb::object note) {
  const std::optional<RequestId> id = id_of(request_id);
  if (!id) throw nb::value_error("a request's id must be text of at most 31 bytes");
  auto* const own = nb::cast<AssignmentBook*>(book);
  std::vector<nb::object> changed;
  log.add(*id, {std::move(worker), std::move(book), std::move(note), own}, at, weight, prompt, reusable,
          [&](const Sent& sent) { changed.push_back(sent.worker); });
  return listed(changed);
}

nb::object expire(Log& log, double now) {
  std::vector<nb::object> changed;
  log.expire(now, [&](const Sent& sent) { changed.push_back(sent.worker); });
  return listed(changed);
}

nb::object reported(Log& log, const nb::str& request_id, bool (AssignmentBook::*deed)(std::uint64_t)) {
  const Log::Request* request = find(log, request_id);
  if (request == nullptr) return nb::none();
  if (!(request->owner.book().*deed)(request->number)) return nb::tuple();
  return nb::make_tuple(request->owner.worker);
}

nb::object take_note(Log& log, const nb::str& request_id) {
  Log::Request* request = find(log, request_id);
  if (request == nullptr) return nb::none();
  return std::exchange(request->owner.note, nb::none());
}

}  // namespace

void bind_requests(nb::module_& module) {
  nb::class_<Log>(module, "RequestLog")
      .def(nb::init<std::size_t, double, double>(), nb::arg("limit"), nb::arg("ttl_s"), nb::arg("least_cost"))
      .def("__len__", &Log::size)
      .def("add", &add, nb::arg("request_id"), nb::arg("worker"), nb::arg("book"), nb::arg("at"), nb::arg("weight"),
           nb::arg("prompt"), nb::arg("reusable"), nb::arg("note").none())
      .def("end_prefill",
           [](Log& self, const nb::str& request_id) { return reported(self, request_id, &AssignmentBook::end_prefill); })
      .def("end", [](Log& self, const nb::str& request_id) { return reported(self, request_id, &AssignmentBook::end); })
      .def("take_note", &take_note)
      .def("expire", &expire)
      .def_prop_ro("oldest_at", &Log::oldest_at);
}

}  // namespace kvroute

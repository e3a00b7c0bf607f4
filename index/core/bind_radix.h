// What both parts of the radix index's bindings use.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "core/bind_module.h"
#include "core/radix.h"

namespace kvroute::radix {

namespace nb = nanobind;

inline nb::object taken(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

inline std::string_view name_of(nb::handle text) {
  const auto name = utf8_of(text);
  if (!name) throw nb::value_error("a namespace must be text without lone surrogates");
  return *name;
}

inline Slot checked(const RadixIndex& index, Slot slot) {
  if (!index.has(slot)) throw nb::key_error("no worker in this slot");
  return slot;
}

inline void add_to(const nb::object& delta, const char* name, std::uint64_t count) {
  if (count) delta.attr(name) = delta.attr(name) + nb::int_(count);
}

inline void tell(const nb::object& delta, const RadixDelta& done) {
  add_to(delta, "stored", done.stored);
  add_to(delta, "removed", done.removed);
  add_to(delta, "orphans", done.orphans);
}

inline void tell_skip(const nb::object& delta, Skip skip) {
  if (skip != Skip::kUsed) delta.attr("skip")(name_of(skip));
}

inline nb::object maybe(const std::optional<std::int64_t>& value) {
  return value ? nb::object(nb::int_(*value)) : nb::none();
}

// Events of a payload applied to the index (bind_radix_payload.cpp).
void bind_batch(nb::module_& module);
void bind_applying(nb::class_<RadixIndex>& index);

}  // namespace kvroute::radix

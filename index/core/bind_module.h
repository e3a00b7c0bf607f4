// The parts of the extension module, and what they share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvroute {

// What a bytes object holds; valid as long as the object.
inline std::span<const std::uint8_t> bytes_of(const nanobind::bytes& value) {
  return {static_cast<const std::uint8_t*>(value.data()), value.size()};
}

// A str as UTF-8, valid as long as the object; nothing for one that has none (a lone surrogate).
inline std::optional<std::string_view> utf8_of(nanobind::handle text) {
  Py_ssize_t size = 0;
  const char* start = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (start != nullptr) return std::string_view(start, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

void bind_frames(nanobind::module_& module);
void bind_hashes(nanobind::module_& module);
void bind_radix(nanobind::module_& module);
void bind_blocks(nanobind::module_& module);
void bind_decision(nanobind::module_& module);
void bind_requests(nanobind::module_& module);
void bind_tokens(nanobind::module_& module);

}  // namespace kvroute

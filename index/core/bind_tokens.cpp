// What the short way reads of a routing request: its head, and the token list in a JSON body.
#include <nanobind/nanobind.h>

#include "core/bind_module.h"
#include "core/request_head.h"
#include "core/token_list.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

constexpr std::string_view kStandIn = "[0]";

// (ids as little-endian u32, the body with [0] in place of their list), or None.
nb::object token_list(const nb::bytes& body) {
  const std::string_view text(body.c_str(), body.size());
  const auto found = find_tokens(text);
  if (!found) return nb::none();
  const auto [begin, end, count] = *found;
  PyObject* tokens = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * 4));
  if (tokens == nullptr) throw nb::python_error();
  const nb::object owner = nb::steal(tokens);
  if (!read_tokens(text.substr(begin, end - begin), count, reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(tokens))))
    return nb::none();
  const std::size_t size = begin + kStandIn.size() + (text.size() - end);
  PyObject* envelope = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (envelope == nullptr) throw nb::python_error();
  char* out = PyBytes_AS_STRING(envelope);
  out += text.copy(out, begin);
  out += kStandIn.copy(out, kStandIn.size());
  text.substr(end).copy(out, text.size() - end);
  return nb::make_tuple(owner, nb::steal(envelope));
}

// (the head without its length, that length, where the body begins), or None.
nb::object request_head(const nb::bytes& data, std::size_t most) {
  const std::string_view text(data.c_str(), data.size());
  const auto found = head_length(text, most);
  if (!found) return nb::none();
  const auto [begin, end, length, body_at] = *found;
  const std::size_t rest = body_at - 2 - end;  // with the end of its last line
  PyObject* head = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(begin + rest));
  if (head == nullptr) throw nb::python_error();
  char* out = PyBytes_AS_STRING(head);
  out += text.copy(out, begin);
  text.substr(end).copy(out, rest);
  return nb::make_tuple(nb::steal(head), length, body_at);
}

}  // namespace

void bind_tokens(nb::module_& module) {
  module.def("token_list", &token_list, nb::arg("body"),
             "The ids of the list in the member token_ids or prompt of a JSON object, as little-endian u32, and the body "
             "with [0] in its place. None where there is no such list of ids, or none that is easy to find.");
  module.def("request_head", &request_head, nb::arg("data"), nb::arg("most"),
             "As `head_apart` of app/known_heads.py, for a head that ends within `most` bytes.");
}

}  // namespace kvroute

// SHA-256 and request keys, for tests and for the rare paths that stay in Python.
#include <nanobind/nanobind.h>

#include <vector>

#include "core/bind_module.h"
#include "core/request_key.h"
#include "core/sha256.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

std::span<const std::uint8_t> bytes_of(const nb::bytes& value) {
  return {static_cast<const std::uint8_t*>(value.data()), value.size()};
}

nb::bytes as_bytes(const Sha256Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

nb::bytes prompt_keys(const nb::bytes& root, const nb::bytes& tokens, std::size_t block_size) {
  if (root.size() != sizeof(RequestKey)) throw nb::value_error("a key is 8 bytes");
  if (block_size == 0 || block_size > (1u << 20)) throw nb::value_error("block_size is from 1 to 2**20");
  const std::span<const std::uint8_t> all = bytes_of(tokens);
  const std::size_t step = block_size * 4, blocks = all.size() / step;
  std::vector<std::uint8_t> scratch(sizeof(RequestKey) + step), keys(blocks * sizeof(RequestKey));
  {
    nb::gil_scoped_release released;
    RequestKey key = key_of_bytes(bytes_of(root).data());
    for (std::size_t at = 0; at < blocks; ++at) {
      key = child_key(key, all.data() + at * step, step, scratch.data());
      bytes_of_key(key, keys.data() + at * sizeof key);
    }
  }
  return nb::bytes(keys.data(), keys.size());
}

}  // namespace

void bind_hashes(nb::module_& module) {
  module.def("sha256", [](const nb::bytes& message) { return as_bytes(sha256(bytes_of(message))); });
  module.def("sha256_portable", [](const nb::bytes& message) { return as_bytes(sha256_portable(bytes_of(message))); });
  module.def("has_sha_instructions", &has_sha_instructions);
  module.def("prompt_keys", &prompt_keys, nb::arg("root"), nb::arg("tokens"), nb::arg("block_size"),
             "The request keys of the whole blocks, joined, 8 bytes each. Releases the GIL.");
}

}  // namespace kvroute

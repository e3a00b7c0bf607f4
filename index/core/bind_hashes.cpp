// SHA-256, request keys and the engines' block hashes, for tests and for what stays in Python.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <vector>

#include "core/bind_module.h"
#include "core/block_digest.h"
#include "core/request_key.h"
#include "core/sha256.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

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

// The digests of whole blocks below `parent`, joined. None: only Python hashes such blocks.
nb::object block_digests(const nb::str& algorithm, const nb::bytes& parent, const nb::bytes& tokens,
                         std::size_t block_size) {
  const std::optional<HashAlgorithm> known = algorithm_named(algorithm.c_str());
  if (!known) throw nb::key_error(algorithm.c_str());
  if (parent.size() > BlockDigester::kMostParent || block_size > BlockDigester::kMostTokens) return nb::none();
  if (block_size == 0) throw nb::value_error("block_size is at least 1");
  const std::span<const std::uint8_t> all = bytes_of(tokens);
  BlockDigester digester(*known);
  const std::size_t step = block_size * 4, blocks = all.size() / step, size = digester.digest_size();
  std::vector<std::uint8_t> joined(blocks * size);
  {
    nb::gil_scoped_release released;
    std::span<const std::uint8_t> above = bytes_of(parent);
    for (std::size_t at = 0; at < blocks; ++at) {
      const BlockDigest digest = digester.digest(above, all.subspan(at * step, step));
      std::copy_n(digest.bytes.data(), size, joined.data() + at * size);
      above = {joined.data() + at * size, size};
    }
  }
  return nb::bytes(joined.data(), joined.size());
}

// As vLLM hashes one block; its size is that of `tokens`, which may be empty.
nb::object block_digest(const nb::str& algorithm, const nb::bytes& parent, const nb::bytes& tokens) {
  const std::optional<HashAlgorithm> known = algorithm_named(algorithm.c_str());
  if (!known) throw nb::key_error(algorithm.c_str());
  if (tokens.size() % 4 != 0) throw nb::value_error("a token is 4 bytes");
  if (parent.size() > BlockDigester::kMostParent || tokens.size() > BlockDigester::kMostTokens * 4) return nb::none();
  const BlockDigest digest = BlockDigester(*known).digest(bytes_of(parent), bytes_of(tokens));
  return nb::bytes(digest.bytes.data(), digest.size);
}

}  // namespace

void bind_hashes(nb::module_& module) {
  module.def("sha256", [](const nb::bytes& message) { return as_bytes(sha256(bytes_of(message))); });
  module.def("sha256_portable", [](const nb::bytes& message) { return as_bytes(sha256_portable(bytes_of(message))); });
  module.def("has_sha_instructions", &has_sha_instructions);
  module.def("prompt_keys", &prompt_keys, nb::arg("root"), nb::arg("tokens"), nb::arg("block_size"),
             "The request keys of the whole blocks, joined, 8 bytes each. Releases the GIL.");
  module.def("block_digest", &block_digest, nb::arg("algorithm"), nb::arg("parent"), nb::arg("tokens"));
  module.def("block_digests", &block_digests, nb::arg("algorithm"), nb::arg("parent"), nb::arg("tokens"),
             nb::arg("block_size"), "The digests of the whole blocks below a parent, joined. Releases the GIL.");
}

}  // namespace kvroute

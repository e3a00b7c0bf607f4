// Any bytes as an event payload: nothing may be read or written out of bounds, and what is held must add up.
#include <cstdlib>

#include "core/block_match.h"
#include "core/block_payload.h"

namespace {

void must(bool holds) {
  if (!holds) std::abort();
}

// The second worker's hashes are checked: what is counted are the blocks of the stores that were applied.
void apply_checked(kvroute::BlockHolders& holders, std::uint32_t number, const kvroute::Layout& layout,
                   const kvroute::PlainPayload& payload, std::uint8_t choice) {
  using namespace kvroute;
  const auto algorithm = static_cast<HashAlgorithm>(choice >> 4 & 3);
  const BlockRule rule{algorithm, {BlockDigester(algorithm).digest_size(), {}}};
  BlockCheck check(rule, choice & 8 ? layout.block_size : 0);
  const Applied applied = apply_plain(holders, number, layout, 1, payload, false, &check);
  std::size_t blocks = 0;
  for (std::size_t at = 0; at < applied.done; ++at) {
    if (payload.events[at].is_store) blocks += payload.events[at].count;
  }
  must(check.matched() + check.unchecked() == blocks);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvroute;
  if (size == 0) return 0;
  // The first byte chooses among layouts and the rest is cut into two payloads, so that the second meets a filled index.
  const std::size_t cut = 1 + (size - 1) * (data[0] >> 4) / 15;
  const Layout layout{true, (data[0] & 1) == 0, 1u + (data[0] >> 1 & 3), ""};
  BlockHolders holders;
  const std::uint32_t domain = holders.new_domain(true);
  for (const std::uint32_t number : {0u, 70u}) holders.enter(number, domain);
  for (const auto part : {std::span(data + 1, cut - 1), std::span(data + cut, size - cut), std::span(data + 1, size - 1)}) {
    PlainPayload payload;
    if (!read_plain(part, payload)) continue;
    const Applied applied = apply_plain(holders, 0, layout, 1, payload, true);
    apply_checked(holders, 70, layout, payload, data[0]);
    must(applied.done <= payload.events.size() && applied.operations.size() <= applied.done);
    for (const PlainEvent& event : payload.events) {
      walk(holders, {1, payload.token_bytes(event), 4u * layout.block_size, {}}, {1, 1u << 6}, 0);
    }
  }
  holders.release_all(0);
  holders.release_all(70);
  must(holders.entries() == 0 && holders.size_bytes() == 0);
  return 0;
}

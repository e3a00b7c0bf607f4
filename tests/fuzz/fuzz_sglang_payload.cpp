// SGLang payloads of any bytes: none may be read beyond its end, and whatever is read keeps the radix index whole.
//
// An input is a sequence of messages, each after two bytes of length, told to one of three workers in turn. Prompts are
// taken from the last message that had tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "core/radix_payload.h"

using namespace kvroute::radix;

namespace {

void require(const std::string& fault) {
  if (fault.empty()) return;
  std::fprintf(stderr, "%s\n", fault.c_str());
  std::abort();
}

void apply(RadixIndex& index, Slot slot, const PlainBatch& batch) {
  RadixDelta delta;
  for (const PlainEvent& event : batch.events) {
    switch (event.kind) {
      case PlainEvent::Kind::kStored:
        index.store(slot,
                    {event.parent, batch.handles_of(event), batch.tokens_of(event), event.page_size, event.bigrams,
                     event.medium},
                    event.cache_salt, delta);
        index.match(batch.tokens_of(event), {event.cache_salt, ""}, {~std::uint64_t{0}, ~std::uint64_t{0}});
        break;
      case PlainEvent::Kind::kRemoved: index.remove(slot, batch.handles_of(event), event.medium, delta); break;
      case PlainEvent::Kind::kCleared: index.clear(slot); break;
    }
  }
}

void restore(RadixIndex& index, Slot slot) {
  RadixIndex other(index.page_size(), index.unit_bytes());
  other.add(slot);
  for (const DumpedRun& run : index.dump(slot)) other.restore(slot, run);
  require(other.fault().empty() ? "" : "restored: " + other.fault());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static constexpr Slot kSlots[] = {0, 1, 70};
  std::span<const std::uint8_t> rest(bytes, size);
  if (rest.empty()) return 0;
  const std::uint8_t shape = rest[0];
  RadixIndex index(shape & 1 ? 1 : 2, shape & 2 ? 8 : 4);
  for (Slot slot = 0; slot <= kSlots[2]; ++slot) index.add(slot);
  rest = rest.subspan(1);
  for (std::size_t turn = 0; rest.size() > 2; ++turn) {
    const std::size_t length = std::min<std::size_t>(rest[0] << 8 | rest[1], rest.size() - 2);
    if (const auto batch = plain_batch(rest.subspan(2, length))) apply(index, kSlots[turn % 3], *batch);
    rest = rest.subspan(2 + length);
  }
  require(index.fault());
  for (const Slot slot : kSlots) restore(index, slot);
  for (Slot slot = 0; slot <= kSlots[2]; ++slot) index.drop(slot);
  if (index.page_count() || index.node_count() || index.size_bytes()) require("something is left of nothing");
  return 0;
}

// Any sequence of insertions and removals: the tables hold what a map of the standard library holds.
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "core/flat_table.h"
#include "core/split_table.h"

namespace {

void must(bool holds) {
  if (!holds) std::abort();
}

template <class Table>
void compare(const Table& table, const std::unordered_map<std::uint64_t, std::uint64_t>& map) {
  must(table.size() == map.size());
  for (const auto& [key, value] : map) {
    const kvroute::PairSlot* slot = table.find(key);
    must(slot != nullptr && slot->value == value);
  }
  std::size_t seen = 0;
  table.each([&](const kvroute::PairSlot& slot) { seen += map.contains(slot.key); });
  must(seen == map.size());
}

// A step inserts, or removes, up to 16 keys in a row of few different ones.
template <class Table>
void play(Table& table, const std::uint8_t* data, std::size_t size) {
  std::unordered_map<std::uint64_t, std::uint64_t> map;
  for (std::size_t at = 0; at + 2 < size; at += 3) {
    const std::uint64_t first = data[at + 1] | (data[at + 2] & 3u) << 8;
    for (std::uint64_t key = first; key < first + (data[at] >> 4); ++key) {
      if (data[at] & 1) {
        const auto [slot, is_new] = table.insert(key);
        must(is_new == !map.contains(key));
        slot->value = map[key] = at + 1;
      } else {
        must(table.erase(key) == (map.erase(key) == 1));
        must(table.find(key) == nullptr);
      }
    }
  }
  compare(table, map);
  if constexpr (requires { table.reserve(size); }) {
    table.reserve(size);
    compare(table, map);
  }
  if (size > 0 && data[0] & 2) {  // all that is left is taken out, and the memory given back at the end
    for (const auto& [key, value] : map) table.take(table.find(key));
    table.fit();
    must(table.empty() && table.size_bytes() == kvroute::KeyMap().size_bytes());
    map.clear();
    compare(table, map);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvroute::KeyMap flat;
  play(flat, data, size);
  kvroute::SplitTable<kvroute::PairSlot, 16> split;
  play(split, data, size);
  return 0;
}

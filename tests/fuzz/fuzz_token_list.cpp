// libFuzzer target for the token lists of JSON bodies: no input may read or write out of bounds, and what is read must be
// what a plain reader of the same list reads.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/token_list.h"

namespace {

// The list again, one digit after the other.
bool read_plainly(std::string_view list, std::vector<std::uint32_t>& ids) {
  std::size_t at = 1;
  auto skip = [&] { at = std::min(list.find_first_not_of(" \t\r\n", at), list.size()); };
  for (;;) {
    skip();
    const std::size_t first = at;
    std::uint64_t value = 0;
    for (; at < list.size() && list[at] >= '0' && list[at] <= '9'; ++at) {
      value = value * 10 + static_cast<std::uint64_t>(list[at] - '0');
      if (value > 0xFFFFFFFFu) return false;
    }
    if (at == first || (list[first] == '0' && at - first > 1)) return false;
    ids.push_back(static_cast<std::uint32_t>(value));
    skip();
    if (at >= list.size()) return false;
    if (list[at] == ']') return at + 1 == list.size();
    if (list[at++] != ',') return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto found = kvroute::find_tokens(body);
  if (!found) return 0;
  if (found->begin >= found->end || found->end > size || body[found->begin] != '[') std::abort();
  // Exactly as large as promised: one byte beyond is an error of the sanitizer.
  const std::vector<char> list(data + found->begin, data + found->end);
  std::vector<std::uint8_t> out(found->count * 4);
  std::vector<std::uint32_t> ids;
  const bool plainly = read_plainly({list.data(), list.size()}, ids);
  if (kvroute::read_tokens({list.data(), list.size()}, found->count, out.data()) != plainly) std::abort();
  for (std::size_t at = 0; plainly && at < ids.size(); ++at) {
    const std::uint8_t* id = out.data() + 4 * at;
    const std::uint32_t value = id[0] | id[1] << 8 | id[2] << 16 | static_cast<std::uint32_t>(id[3]) << 24;
    if (value != ids[at]) std::abort();
  }
  if (plainly && ids.size() != found->count) std::abort();
  return 0;
}

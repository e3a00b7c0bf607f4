// Any bytes as the beginning of an HTTP request: its length is found as a plain reading finds it.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/request_head.h"

namespace {

constexpr std::size_t kMost = 256;

std::string lower(std::string text) {
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
  }
  return text;
}

// As `head_apart` of app/known_heads.py.
std::optional<kvroute::HeadLength> plainly(const std::string& data) {
  const std::string name = "\r\ncontent-length: ";
  const std::size_t end = data.find("\r\n\r\n");
  if (end == std::string::npos || end + 4 > kMost) return std::nullopt;
  const std::string head = data.substr(0, end + 2);
  const std::size_t at = lower(head).find(name);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + name.size(), stop = head.find("\r\n", begin);
  const std::string digits = head.substr(begin, stop - begin);
  if (digits.empty() || digits.size() > 15) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return kvroute::HeadLength{begin, stop, std::stoull(digits), end + 4};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> exactly(data, data + size);  // one byte beyond is an error of the sanitizer
  const auto found = kvroute::head_length({exactly.data(), exactly.size()}, kMost);
  const auto expected = plainly(std::string(exactly.begin(), exactly.end()));
  if (found.has_value() != expected.has_value()) std::abort();
  if (found && (found->begin != expected->begin || found->end != expected->end || found->length != expected->length ||
                found->body_at != expected->body_at)) {
    std::abort();
  }
  return 0;
}

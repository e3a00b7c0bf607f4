#include "core/request_head.h"

#include <algorithm>

namespace kvroute {
namespace {

constexpr std::string_view kLine = "\r\n", kEnd = "\r\n\r\n", kName = "content-length: ";
constexpr std::size_t kMostDigits = 15;

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter; }

bool is_length(std::string_view line) {
  return line.size() >= kName.size() &&
         std::equal(kName.begin(), kName.end(), line.begin(), [](char name, char letter) { return name == lower(letter); });
}

}  // namespace

std::optional<HeadLength> head_length(std::string_view data, std::size_t most) {
  const std::size_t end = data.substr(0, most).find(kEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view head = data.substr(0, end + kLine.size());
  for (std::size_t at = head.find(kLine); at != std::string_view::npos; at = head.find(kLine, at + 1)) {
    if (!is_length(head.substr(at + kLine.size()))) continue;
    const std::size_t begin = at + kLine.size() + kName.size(), stop = head.find(kLine, begin);
    if (stop == begin || stop - begin > kMostDigits) return std::nullopt;
    std::uint64_t length = 0;
    for (const char digit : head.substr(begin, stop - begin)) {
      if (digit < '0' || digit > '9') return std::nullopt;
      length = length * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    return HeadLength{begin, stop, length, end + kEnd.size()};
  }
  return std::nullopt;
}

}  // namespace kvroute

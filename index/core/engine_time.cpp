#include "core/engine_time.h"

#include <bit>
#include <cmath>

namespace kvroute {
namespace {

constexpr double kPlaceholderBelow = 1e9;  // seconds since 1970: what lies before 2001 was made up

}  // namespace

std::optional<double> engine_time(std::span<const std::uint8_t> payload) {
  if (payload.size() < 10 || (payload[0] & 0xf0) != 0x90 || payload[0] < 0x92 || payload[1] != 0xcb) return {};
  std::uint64_t bits = 0;
  for (std::size_t at = 2; at < 10; ++at) bits = bits << 8 | payload[at];
  const auto ts = std::bit_cast<double>(bits);
  return std::isfinite(ts) ? std::optional(ts) : std::nullopt;
}

bool follows(double ts, double newest, double step_s) {
  return (ts < kPlaceholderBelow) == (newest < kPlaceholderBelow) && ts >= newest - step_s;
}

}  // namespace kvroute

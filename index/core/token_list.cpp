#include "core/token_list.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvroute {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

const char* past_space(const char* at, const char* end) {
  while (at != end && *at <= ' ' && is_space(*at)) ++at;
  return at;
}

// After the string whose opening quote is at `at`; null where it does not end.
const char* past_string(const char* at, const char* end) {
  for (++at; at != end; ++at) {
    if (*at == '"') return at + 1;
    if (*at == '\\' && ++at == end) return nullptr;
  }
  return nullptr;
}

// After a value of any kind, or at the ',' or '}' that ends it; null where the body ends first.
const char* past_value(const char* at, const char* end) {
  std::size_t depth = 0;
  while (at != end) {
    if (*at == '"') {
      if ((at = past_string(at, end)) == nullptr) return nullptr;
      continue;
    }
    if (*at == '{' || *at == '[') {
      ++depth;
    } else if (*at == '}' || *at == ']') {
      if (depth == 0) return at;
      --depth;
    } else if (*at == ',' && depth == 0) {
      return at;
    }
    ++at;
  }
  return nullptr;
}

void store(std::uint32_t value, std::uint8_t* out) {
  if constexpr (std::endian::native == std::endian::big) {
    value = (value >> 24) | (value >> 8 & 0xFF00u) | (value << 8 & 0xFF0000u) | (value << 24);
  }
  std::memcpy(out, &value, sizeof value);
}

// An id digit by digit; null where there is none, or it is too large or has a leading zero.
const char* read_slowly(const char* at, const char* end, std::uint8_t* out) {
  const char* const first = at;
  std::uint64_t value = 0;
  for (; at != end && is_digit(*at); ++at) {
    value = value * 10 + static_cast<std::uint64_t>(*at - '0');
    if (value > 0xFFFFFFFFu) return nullptr;
  }
  if (at == first || (*first == '0' && at - first > 1)) return nullptr;
  store(static_cast<std::uint32_t>(value), out);
  return at;
}

// Ids of one to six digits, each with "," or ", " behind it, as many as come and eight characters are left for; eight
// characters at once. After the last of them; moves `out` and `count` on. At least one id is left to be read.
const char* read_quickly(const char* at, const char* end, std::size_t& count, std::uint8_t*& out) {
  if constexpr (std::endian::native != std::endian::little) return at;
  while (count > 1 && end - at >= 8) {
    std::uint64_t chars;
    std::memcpy(&chars, at, sizeof chars);
    const std::uint64_t digits = chars ^ 0x3030303030303030u;  // 0..9 where there are digits
    const std::uint64_t others = ((digits + 0x7676767676767676u) | digits) & 0x8080808080808080u;
    const int bits = std::countr_zero(others) & ~7;  // of the digits before the first other character
    if (bits == 0 || bits > 48 || (bits > 8 && (digits & 0xFF) == 0)) break;
    const std::uint64_t behind = chars >> bits;
    const bool spaced = (behind & 0xFFFF) == (',' | ' ' << 8);
    if (!spaced && (behind & 0xFF) != ',') break;
    std::uint64_t value = digits << (64 - bits);
    value = value * 10 + (value >> 8);
    value = ((value & 0x000000FF000000FFu) * 0x000F424000000064u +
             ((value >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u) >> 32;
    store(static_cast<std::uint32_t>(value), out);
    at += bits / 8 + 1 + spaced;
    out += sizeof(std::uint32_t);
    --count;
  }
  return at;
}

std::optional<TokenSpan> span_of(std::string_view body, const char* at) {
  const char* const end = body.data() + body.size();
  const auto* last = static_cast<const char*>(std::memchr(at, ']', static_cast<std::size_t>(end - at)));
  if (last == nullptr) return std::nullopt;
  const auto commas = static_cast<std::size_t>(std::count(at, last, ','));
  const auto begin = static_cast<std::size_t>(at - body.data());
  return TokenSpan{begin, static_cast<std::size_t>(last + 1 - body.data()), commas + 1};
}

}  // namespace

std::optional<TokenSpan> find_tokens(std::string_view body) {
  const char *at = body.data(), *const end = at + body.size();
  at = past_space(at, end);
  if (at == end || *at != '{') return std::nullopt;
  do {
    at = past_space(at + 1, end);
    if (at == end || *at != '"') return std::nullopt;
    const char* const key = at;
    at = past_string(at, end);
    if (at == nullptr) return std::nullopt;
    const std::string_view name(key + 1, static_cast<std::size_t>(at - key - 2));
    if (name.find('\\') != std::string_view::npos) return std::nullopt;
    at = past_space(at, end);
    if (at == end || *at != ':') return std::nullopt;
    at = past_space(at + 1, end);
    if (at != end && *at == '[' && (name == "token_ids" || name == "prompt")) return span_of(body, at);
    at = past_value(at, end);
  } while (at != nullptr && *at == ',');
  return std::nullopt;
}

bool read_tokens(std::string_view list, std::size_t count, std::uint8_t* out) {
  const char *at = list.data(), *const last = at + list.size() - 1;  // at the ']'
  for (;;) {
    at = past_space(at + 1, last);
    at = read_quickly(at, last, count, out);
    at = read_slowly(past_space(at, last), last, out);
    if (at == nullptr) return false;
    at = past_space(at, last);
    if (--count == 0) return at == last;
    if (at == last || *at != ',') return false;
    out += sizeof(std::uint32_t);
  }
}

}  // namespace kvroute

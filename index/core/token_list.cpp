#include "core/token_list.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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

constexpr std::uint64_t kZeros = 0x3030303030303030u;

// Digits of up to eight bytes, the last in the highest; zero bytes below the first.
std::uint32_t value_of(std::uint64_t digits) {
  digits = digits * 10 + (digits >> 8);
  digits = (digits & 0x000000FF000000FFu) * 0x000F424000000064u +
           ((digits >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u;
  return static_cast<std::uint32_t>(digits >> 32);
}

// Characters less '0', of which those that are no digits have their highest bit set here.
std::uint64_t no_digits(std::uint64_t digits) {
  return ((digits + 0x7676767676767676u) | digits) & 0x8080808080808080u;
}

#if defined(__SSE2__)

constexpr std::ptrdiff_t kBlock = 64;

// Which of 64 characters are commas.
std::uint64_t commas_of(const char* at) {
  std::uint64_t mask = 0;
  for (int part = 0; part < 4; ++part) {
    const __m128i chars = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at) + part);
    const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(chars, _mm_set1_epi8(',')));
    mask |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(found)) << (16 * part);
  }
  return mask;
}

std::size_t count_commas(const char* at, const char* end) {
  std::size_t count = 0;
  for (; end - at >= kBlock; at += kBlock) count += static_cast<std::size_t>(std::popcount(commas_of(at)));
  return count + static_cast<std::size_t>(std::count(at, end, ','));
}

// Ids of one to eight digits, each with "," or ", " behind it, as many as come while 64 characters are left. Where an id
// ends is known from its comma, so that none waits for the one before. `first`: what may be read begins there.
// After the last of them; moves `out` and `count` on. At least one id is left to be read.
const char* read_quickly(const char* first, const char* at, const char* end, std::size_t& count, std::uint8_t*& out) {
  if (at - first < 8) return at;  // eight characters before every comma are looked at
  std::uint8_t* to = out;         // a variable of its own: what is written by bytes might otherwise be `out` itself
  bool plain = true;
  while (plain && end - at >= kBlock) {
    const char* const block = at;
    std::uint64_t commas = commas_of(block);
    if (commas == 0) break;
    for (; commas != 0; commas &= commas - 1) {
      const char* const comma = block + std::countr_zero(commas);
      const std::ptrdiff_t length = comma - at;
      plain = length >= 1 && length <= 8;
      if (!plain) break;
      std::uint64_t digits;
      std::memcpy(&digits, comma - 8, sizeof digits);
      const auto unused = static_cast<unsigned>(64 - 8 * length);
      digits = (digits ^ kZeros) >> unused;
      plain = no_digits(digits) == 0 && (length == 1 || (digits & 0xFF) != 0);
      if (!plain) break;
      store(value_of(digits << unused), to);
      at = comma + 1;
      at += *at == ' ';
      to += sizeof(std::uint32_t);
    }
  }
  count -= static_cast<std::size_t>(to - out) / sizeof(std::uint32_t);
  out = to;
  return at;
}

#else

std::size_t count_commas(const char* at, const char* end) { return static_cast<std::size_t>(std::count(at, end, ',')); }

// Ids of one to six digits, each with "," or ", " behind it, as many as come and eight characters are left for; eight
// characters at once. After the last of them; moves `out` and `count` on. At least one id is left to be read.
const char* read_quickly(const char*, const char* at, const char* end, std::size_t& count, std::uint8_t*& out) {
  if constexpr (std::endian::native != std::endian::little) return at;
  while (count > 1 && end - at >= 8) {
    std::uint64_t chars;
    std::memcpy(&chars, at, sizeof chars);
    const std::uint64_t digits = chars ^ kZeros;  // 0..9 where there are digits
    const int bits = std::countr_zero(no_digits(digits)) & ~7;  // of the digits before the first other character
    if (bits == 0 || bits > 48 || (bits > 8 && (digits & 0xFF) == 0)) break;
    const std::uint64_t behind = chars >> bits;
    const bool spaced = (behind & 0xFFFF) == (',' | ' ' << 8);
    if (!spaced && (behind & 0xFF) != ',') break;
    store(value_of(digits << (64 - bits)), out);
    at += bits / 8 + 1 + spaced;
    out += sizeof(std::uint32_t);
    --count;
  }
  return at;
}

#endif

std::optional<TokenSpan> span_of(std::string_view body, const char* at) {
  const char* const end = body.data() + body.size();
  const auto* last = static_cast<const char*>(std::memchr(at, ']', static_cast<std::size_t>(end - at)));
  if (last == nullptr) return std::nullopt;
  const std::size_t commas = count_commas(at, last);
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
    at = read_quickly(list.data(), at, last, count, out);
    at = read_slowly(past_space(at, last), last, out);
    if (at == nullptr) return false;
    at = past_space(at, last);
    if (--count == 0) return at == last;
    if (at == last || *at != ',') return false;
    out += sizeof(std::uint32_t);
  }
}

}  // namespace kvroute

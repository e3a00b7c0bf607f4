// Reads MessagePack from bytes of a network. Every read is bounds-checked; a value of another type than the one asked
// for, or one that is not whole, fails the reader, which then stays failed.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace kvroute::radix {

class MsgpackReader {
 public:
  enum class Kind : std::uint8_t { kNil, kInteger, kFloat, kText, kBytes, kArray, kMap, kOther };

  explicit MsgpackReader(std::span<const std::uint8_t> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  bool ok() const { return !failed_; }
  bool at_end() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  void fail() { failed_ = true; }

  // The kind of the next value; kOther at the end and for what MessagePack does not know here.
  Kind peek() const;
  bool nil();
  // A number of elements (of pairs, for a map), each of which takes a byte at least, so that a count that
  // cannot be true is refused before anything is allocated for it.
  std::uint32_t array() { return count(0x90, 0xdc, 1); }
  std::uint32_t map() { return count(0x80, 0xde, 2); }
  std::int64_t int64();
  std::uint32_t uint32();
  double number();
  std::string_view text();
  bool boolean();
  // An integer of any size.
  void integer();

 private:
  template <typename Word>
  Word word();
  std::uint8_t byte() { return word<std::uint8_t>(); }
  std::uint32_t count(std::uint8_t fixed, std::uint8_t wide, std::size_t least);
  std::uint64_t magnitude(std::uint8_t head, bool& negative);
  bool need(std::size_t bytes);

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  bool failed_ = false;
};

inline bool MsgpackReader::need(std::size_t bytes) {
  if (failed_ || left() < bytes) failed_ = true;
  return !failed_;
}

template <typename Word>
Word MsgpackReader::word() {
  if (!need(sizeof(Word))) return 0;
  Word value = 0;
  for (std::size_t i = 0; i < sizeof(Word); ++i) value = static_cast<Word>(std::uint64_t{value} << 8 | at_[i]);
  at_ += sizeof(Word);
  return value;
}

inline MsgpackReader::Kind MsgpackReader::peek() const {
  if (failed_ || at_end()) return Kind::kOther;
  const std::uint8_t head = *at_;
  if (head <= 0x7f || head >= 0xe0 || (head >= 0xcc && head <= 0xd3)) return Kind::kInteger;
  if (head <= 0x8f || head == 0xde || head == 0xdf) return Kind::kMap;
  if (head <= 0x9f || head == 0xdc || head == 0xdd) return Kind::kArray;
  if (head <= 0xbf || (head >= 0xd9 && head <= 0xdb)) return Kind::kText;
  if (head == 0xc0) return Kind::kNil;
  if (head >= 0xc4 && head <= 0xc6) return Kind::kBytes;
  if (head == 0xca || head == 0xcb) return Kind::kFloat;
  return Kind::kOther;
}

inline bool MsgpackReader::nil() {
  if (peek() != Kind::kNil) return false;
  ++at_;
  return true;
}

inline std::uint32_t MsgpackReader::count(std::uint8_t fixed, std::uint8_t wide, std::size_t least) {
  const std::uint8_t head = byte();
  std::uint32_t count = 0;
  if ((head & 0xf0) == fixed) {
    count = head & 0x0f;
  } else if (head == wide) {
    count = word<std::uint16_t>();
  } else if (head == wide + 1) {
    count = word<std::uint32_t>();
  } else {
    failed_ = true;
  }
  return need(std::size_t{count} * least) ? count : 0;
}

// The value of an integer, in two's complement when it is negative.
inline std::uint64_t MsgpackReader::magnitude(std::uint8_t head, bool& negative) {
  if (head <= 0x7f) return head;
  if (head >= 0xe0) {
    negative = true;
    return static_cast<std::uint64_t>(static_cast<std::int8_t>(head));
  }
  std::int64_t value = 0;
  switch (head) {
    case 0xcc: return byte();
    case 0xcd: return word<std::uint16_t>();
    case 0xce: return word<std::uint32_t>();
    case 0xcf: return word<std::uint64_t>();
    case 0xd0: value = static_cast<std::int8_t>(byte()); break;
    case 0xd1: value = static_cast<std::int16_t>(word<std::uint16_t>()); break;
    case 0xd2: value = static_cast<std::int32_t>(word<std::uint32_t>()); break;
    case 0xd3: value = static_cast<std::int64_t>(word<std::uint64_t>()); break;
    default: failed_ = true;
  }
  negative = value < 0;
  return static_cast<std::uint64_t>(value);
}

// An integer that fits in 64 bits with a sign.
inline std::int64_t MsgpackReader::int64() {
  bool negative = false;
  const std::uint64_t value = magnitude(byte(), negative);
  if (!negative && value >> 63) failed_ = true;
  return static_cast<std::int64_t>(value);
}

inline std::uint32_t MsgpackReader::uint32() {
  bool negative = false;
  const std::uint64_t value = magnitude(byte(), negative);
  if (negative || value >> 32) failed_ = true;
  return static_cast<std::uint32_t>(value);
}

inline void MsgpackReader::integer() {
  bool negative = false;
  magnitude(byte(), negative);
}

// True when the next value was a boolean.
inline bool MsgpackReader::boolean() {
  if (failed_ || at_end() || (*at_ != 0xc2 && *at_ != 0xc3)) return false;
  ++at_;
  return true;
}

// An integer or a float.
inline double MsgpackReader::number() {
  switch (peek() == Kind::kFloat ? byte() : 0) {
    case 0xca: return std::bit_cast<float>(word<std::uint32_t>());
    case 0xcb: return std::bit_cast<double>(word<std::uint64_t>());
    default: return static_cast<double>(int64());
  }
}

// The bytes of a string, as they are: UTF-8 is not checked.
inline std::string_view MsgpackReader::text() {
  const std::uint8_t head = byte();
  std::size_t length = head & 0x1f;
  switch (head) {
    case 0xd9: length = byte(); break;
    case 0xda: length = word<std::uint16_t>(); break;
    case 0xdb: length = word<std::uint32_t>(); break;
    default:
      if (head < 0xa0 || head > 0xbf) failed_ = true;
  }
  if (!need(length)) return {};
  const auto* start = reinterpret_cast<const char*>(at_);
  at_ += length;
  return {start, length};
}

}  // namespace kvroute::radix

#include "core/msgpack.h"

#include <bit>

namespace kvroute {

bool MsgpackReader::behind_tag(std::size_t size, std::uint64_t& value) const {
  if (left() < 1 + size) return false;
  value = 0;
  for (std::size_t at = 1; at <= size; ++at) value = value << 8 | at_[at];
  return true;
}

bool MsgpackReader::nil() {
  if (!next_is(0xc0)) return false;
  ++at_;
  return true;
}

bool MsgpackReader::boolean() {
  if (!next_is(0xc2) && !next_is(0xc3)) return false;
  ++at_;
  return true;
}

// Header and count of what comes in up to four forms; a tag of 0 means that there is no such form.
bool MsgpackReader::length(std::uint8_t fixed, std::uint8_t fixed_mask, std::uint8_t tag8, std::uint8_t tag16,
                           std::uint8_t tag32, std::size_t& header, std::uint64_t& count) const {
  if (done()) return false;
  const std::uint8_t tag = *at_;
  if (fixed != 0 && (tag & static_cast<std::uint8_t>(~fixed_mask)) == fixed) {
    header = 1;
    count = tag & fixed_mask;
    return true;
  }
  std::size_t size = 0;
  if (tag8 != 0 && tag == tag8) size = 1;
  if (tag == tag16) size = 2;
  if (tag == tag32) size = 4;
  header = 1 + size;
  return size != 0 && behind_tag(size, count);
}

bool MsgpackReader::array(std::uint32_t& count) {
  std::size_t header = 0;
  std::uint64_t items = 0;
  if (!length(0x90, 0x0f, 0, 0xdc, 0xdd, header, items) || items > left() - header) return false;
  at_ += header;
  count = static_cast<std::uint32_t>(items);
  return true;
}

bool MsgpackReader::map(std::uint32_t& count) {
  std::size_t header = 0;
  std::uint64_t pairs = 0;
  if (!length(0x80, 0x0f, 0, 0xde, 0xdf, header, pairs) || 2 * pairs > left() - header) return false;
  at_ += header;
  count = static_cast<std::uint32_t>(pairs);
  return true;
}

bool MsgpackReader::run_of_bytes(std::size_t header, std::uint64_t count, std::span<const std::uint8_t>& bytes) {
  if (count > left() - header) return false;
  bytes = {at_ + header, static_cast<std::size_t>(count)};
  at_ += header + count;
  return true;
}

bool MsgpackReader::text(std::string_view& text) {
  std::size_t header = 0;
  std::uint64_t count = 0;
  std::span<const std::uint8_t> bytes;
  if (!length(0xa0, 0x1f, 0xd9, 0xda, 0xdb, header, count) || !run_of_bytes(header, count, bytes)) return false;
  text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  return true;
}

bool MsgpackReader::binary(std::span<const std::uint8_t>& bytes) {
  std::size_t header = 0;
  std::uint64_t count = 0;
  return length(0, 0, 0xc4, 0xc5, 0xc6, header, count) && run_of_bytes(header, count, bytes);
}

bool MsgpackReader::number(std::uint64_t& number, bool& is_negative) {
  if (done()) return false;
  const std::uint8_t tag = *at_;
  is_negative = false;
  if (tag < 0x80) {
    number = tag;
    ++at_;
    return true;
  }
  if (tag >= 0xe0) {
    number = static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(tag)));
    is_negative = true;
    ++at_;
    return true;
  }
  if (tag < 0xcc || tag > 0xd3) return false;
  const int power = (tag - 0xcc) & 3;
  const std::size_t size = std::size_t{1} << power;
  if (!behind_tag(size, number)) return false;
  if (tag >= 0xd0) {
    const int shift = 64 - 8 * static_cast<int>(size);
    const auto extended = static_cast<std::int64_t>(number << shift) >> shift;
    is_negative = extended < 0;
    number = static_cast<std::uint64_t>(extended);
  }
  at_ += 1 + size;
  return true;
}

// The usual forms (one byte, and 8, 16, 32 bits behind a tag) without a branch that depends on the id.
bool MsgpackReader::ids(std::uint32_t* ids, std::size_t count) {
  constexpr unsigned kUnused[] = {24, 16, 0}, kSize[] = {2, 3, 5};
  for (std::size_t at = 0; at < count; ++at) {
    if (left() >= 5 && (*at_ < 0x80 || (*at_ >= 0xcc && *at_ <= 0xce))) {
      const std::uint8_t tag = *at_;
      const unsigned form = tag < 0x80 ? 0 : tag & 3;
      const std::uint32_t behind = std::uint32_t{at_[1]} << 24 | std::uint32_t{at_[2]} << 16 |
                                   std::uint32_t{at_[3]} << 8 | std::uint32_t{at_[4]};
      ids[at] = tag < 0x80 ? tag : behind >> kUnused[form];
      at_ += tag < 0x80 ? 1 : kSize[form];
      continue;
    }
    std::uint64_t id = 0;
    bool is_negative = false;
    if (!number(id, is_negative) || is_negative || id > 0xffffffff) return false;
    ids[at] = static_cast<std::uint32_t>(id);
  }
  return true;
}

bool MsgpackReader::real(double& value) {
  std::uint64_t bits = 0;
  if (next_is(0xcb) && behind_tag(8, bits)) {
    value = std::bit_cast<double>(bits);
    at_ += 9;
    return true;
  }
  if (next_is(0xca) && behind_tag(4, bits)) {
    value = static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    at_ += 5;
    return true;
  }
  return false;
}

void MsgpackWriter::tagged(std::uint8_t tag, std::uint64_t value, int size) {
  bytes_.push_back(tag);
  for (int at = size - 1; at >= 0; --at) bytes_.push_back(static_cast<std::uint8_t>(value >> (8 * at)));
}

void MsgpackWriter::array(std::size_t count) {
  if (count < 16) {
    bytes_.push_back(static_cast<std::uint8_t>(0x90 | count));
  } else if (count <= 0xffff) {
    tagged(0xdc, count, 2);
  } else {
    tagged(0xdd, count, 4);
  }
}

void MsgpackWriter::text(std::string_view text) {
  if (text.size() < 32) {
    bytes_.push_back(static_cast<std::uint8_t>(0xa0 | text.size()));
  } else if (text.size() <= 0xff) {
    tagged(0xd9, text.size(), 1);
  } else if (text.size() <= 0xffff) {
    tagged(0xda, text.size(), 2);
  } else {
    tagged(0xdb, text.size(), 4);
  }
  bytes_.insert(bytes_.end(), text.begin(), text.end());
}

void MsgpackWriter::binary(std::span<const std::uint8_t> bytes) {
  if (bytes.size() <= 0xff) {
    tagged(0xc4, bytes.size(), 1);
  } else if (bytes.size() <= 0xffff) {
    tagged(0xc5, bytes.size(), 2);
  } else {
    tagged(0xc6, bytes.size(), 4);
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void MsgpackWriter::number(std::uint64_t number) {
  if (number < 0x80) {
    bytes_.push_back(static_cast<std::uint8_t>(number));
  } else if (number <= 0xff) {
    tagged(0xcc, number, 1);
  } else if (number <= 0xffff) {
    tagged(0xcd, number, 2);
  } else if (number <= 0xffffffff) {
    tagged(0xce, number, 4);
  } else {
    tagged(0xcf, number, 8);
  }
}

void MsgpackWriter::negative(std::uint64_t twos_complement) {
  const auto number = static_cast<std::int64_t>(twos_complement);
  if (number >= -32) {
    bytes_.push_back(static_cast<std::uint8_t>(number));
  } else if (number >= INT8_MIN) {
    tagged(0xd0, twos_complement, 1);
  } else if (number >= INT16_MIN) {
    tagged(0xd1, twos_complement, 2);
  } else if (number >= INT32_MIN) {
    tagged(0xd2, twos_complement, 4);
  } else {
    tagged(0xd3, twos_complement, 8);
  }
}

}  // namespace kvroute

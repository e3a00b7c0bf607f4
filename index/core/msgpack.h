// MessagePack, as far as event payloads need it: a reader that is told what to expect, and a writer of small pieces.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvroute {

// Reads one value after the other. Each call answers false, and moves nowhere, when the next value is of another type
// or its bytes are not all there. Lengths are never more than the bytes that are left could hold.
class MsgpackReader {
 public:
  explicit MsgpackReader(std::span<const std::uint8_t> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  bool done() const { return at_ == end_; }

  bool nil();
  bool array(std::uint32_t& count);
  bool map(std::uint32_t& count);
  bool text(std::string_view& text);
  bool binary(std::span<const std::uint8_t>& bytes);
  // A whole number; a negative one as its two's complement.
  bool number(std::uint64_t& number, bool& is_negative);
  // So many whole numbers from 0 to 2^32-1, one after the other; where it fails it has moved.
  bool ids(std::uint32_t* ids, std::size_t count);
  bool real(double& value);
  bool boolean();

 private:
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool next_is(std::uint8_t tag) const { return at_ != end_ && *at_ == tag; }
  // A big-endian number of `size` bytes behind the tag; false when it is not all there.
  bool behind_tag(std::size_t size, std::uint64_t& value) const;
  bool length(std::uint8_t fixed, std::uint8_t fixed_mask, std::uint8_t tag8, std::uint8_t tag16, std::uint8_t tag32,
              std::size_t& header, std::uint64_t& count) const;
  bool run_of_bytes(std::size_t header, std::uint64_t count, std::span<const std::uint8_t>& bytes);

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// Appends values in their shortest form.
class MsgpackWriter {
 public:
  void nil() { bytes_.push_back(0xc0); }
  void array(std::size_t count);
  void text(std::string_view text);
  void binary(std::span<const std::uint8_t> bytes);
  void number(std::uint64_t number);
  void negative(std::uint64_t twos_complement);
  std::vector<std::uint8_t> taken() { return std::move(bytes_); }

 private:
  void tagged(std::uint8_t tag, std::uint64_t value, int size);

  std::vector<std::uint8_t> bytes_;
};

}  // namespace kvroute

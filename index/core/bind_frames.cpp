// Multi-part messages off a ZeroMQ socket. libzmq is not linked: the caller, who has opened the socket with it, tells
// where its functions are, so that both use the same one (engine/frames.py).
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <vector>

#include "core/big_endian.h"
#include "core/bind_module.h"
#include "core/engine_time.h"
#include "core/request_key.h"

namespace nb = nanobind;

namespace kvroute {
namespace {

constexpr int kDontWait = 1;  // ZMQ_DONTWAIT

// zmq_msg_t of libzmq 4: 64 bytes, aligned as a pointer. It belongs to libzmq between `init` and `close`.
struct alignas(void*) Message {
  std::array<unsigned char, 64> opaque;
};

class FrameReader {
 public:
  FrameReader(std::uintptr_t init, std::uintptr_t close, std::uintptr_t receive, std::uintptr_t data,
              std::uintptr_t size, std::uintptr_t more, std::uintptr_t error)
      : init_(reinterpret_cast<Init>(init)),
        close_(reinterpret_cast<Close>(close)),
        receive_(reinterpret_cast<Receive>(receive)),
        data_(reinterpret_cast<Data>(data)),
        size_(reinterpret_cast<Size>(size)),
        more_(reinterpret_cast<More>(more)),
        error_(reinterpret_cast<Error>(error)) {}

  // Messages that wait, as lists of frames: up to `most`, and no further one after `most_bytes`; 0, or the errno that
  // ended them (EAGAIN: no more wait). A message whose frames could not all be read is not among them.
  nb::tuple waiting(std::uintptr_t socket, std::size_t most, std::size_t most_bytes) const {
    nb::list messages;
    std::size_t bytes = 0;
    int error = 0;
    while (error == 0 && messages.size() < most && bytes < most_bytes) {
      nb::list frames;
      error = read(reinterpret_cast<void*>(socket), frames, bytes);
      if (error == 0) messages.append(frames);
    }
    return nb::make_tuple(messages, error);
  }

 private:
  using Init = int (*)(Message*);
  using Close = int (*)(Message*);
  using Receive = int (*)(Message*, void*, int);
  using Data = void* (*)(Message*);
  using Size = std::size_t (*)(const Message*);
  using More = int (*)(const Message*);
  using Error = int (*)();

  struct Frame {
    explicit Frame(const FrameReader& from) : reader(from) { reader.init_(&message); }
    ~Frame() { reader.close_(&message); }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    const FrameReader& reader;
    Message message;
  };

  int read(void* socket, nb::list& frames, std::size_t& bytes) const {
    for (bool more = true; more;) {
      Frame frame(*this);
      if (receive_(&frame.message, socket, kDontWait) < 0) {
        const int error = error_();
        if (error == EINTR) continue;
        return error;
      }
      const std::size_t size = size_(&frame.message);
      frames.append(nb::bytes(static_cast<const char*>(data_(&frame.message)), size));
      bytes += size;
      more = more_(&frame.message) != 0;
    }
    return 0;
  }

  Init init_;
  Close close_;
  Receive receive_;
  Data data_;
  Size size_;
  More more_;
  Error error_;
};

// The payload of a message [topic, seq, payload] with this number; null for any other message. `topic` may be empty:
// then any will do.
nb::handle payload_of(nb::handle message, std::span<const std::uint8_t> topic, std::uint64_t seq) {
  if (!PyList_Check(message.ptr()) || PyList_GET_SIZE(message.ptr()) != 3) return {};
  std::array<std::span<const std::uint8_t>, 3> frames;
  for (std::size_t at = 0; at < 3; ++at) {
    const nb::handle frame = PyList_GET_ITEM(message.ptr(), static_cast<Py_ssize_t>(at));
    if (!PyBytes_Check(frame.ptr())) return {};
    frames[at] = bytes_of(nb::borrow<nb::bytes>(frame));
  }
  const auto& said = frames[0];
  const auto& number = frames[1];
  if (!topic.empty() && !std::equal(said.begin(), said.end(), topic.begin(), topic.end())) return {};
  if (number.size() != 8 || big_endian64(number.data()) != seq) return {};
  return PyList_GET_ITEM(message.ptr(), 2);
}

// Of the messages from `at` on those that plainly go on with a stream: numbered from `seq` without a hole, none made
// more than `step_s` before the one before it. Their payloads, the time of the last one, and each payload's XXH3-64 as
// 8 bytes of this machine's order.
nb::tuple leading_run(const nb::list& messages, std::size_t at, const nb::bytes& topic, std::uint64_t seq,
                      double newest, double step_s) {
  nb::list payloads;
  std::vector<std::uint64_t> digests;
  for (; at < messages.size() && seq != ~0ull; ++at, ++seq) {
    const nb::handle payload = payload_of(messages[at], bytes_of(topic), seq);
    if (!payload.is_valid()) break;
    const auto bytes = bytes_of(nb::borrow<nb::bytes>(payload));
    const std::optional<double> ts = engine_time(bytes);
    if (!ts || !follows(*ts, newest, step_s)) break;
    newest = *ts;
    payloads.append(payload);
    digests.push_back(XXH3_64bits(bytes.data(), bytes.size()));
  }
  return nb::make_tuple(payloads, newest,
                        nb::bytes(reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof digests[0]));
}

}  // namespace

void bind_frames(nb::module_& module) {
  module.def("leading_run", &leading_run);
  nb::class_<FrameReader>(module, "FrameReader")
      .def(nb::init<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                    std::uintptr_t>())
      .def("waiting", &FrameReader::waiting);
}

}  // namespace kvroute

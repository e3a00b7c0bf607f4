// SGLang's plain payloads for Python, and what applies them to the radix index.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "core/bind_radix.h"
#include "core/radix_payload.h"

namespace kvroute::radix {
namespace {

constexpr std::size_t kLongPayload = 16'384;  // bytes from which on other threads may run while it is read

nb::object plain(const nb::bytes& payload) {
  std::optional<PlainBatch> batch;
  if (payload.size() < kLongPayload) {
    batch = plain_batch(bytes_of(payload));
  } else {
    nb::gil_scoped_release released;
    batch = plain_batch(bytes_of(payload));
  }
  return batch ? nb::cast(std::move(*batch)) : nb::none();
}

const PlainEvent& event_at(const PlainBatch& batch, std::size_t at) {
  if (at >= batch.events.size()) throw nb::index_error("the batch has fewer events");
  return batch.events[at];
}

nb::list hash_list(const PlainBatch& batch, const PlainEvent& event, std::size_t limit) {
  const Handles handles = batch.handles_of(event).first(std::min(event.handle_count, limit));
  nb::object hashes = taken(PyList_New(static_cast<Py_ssize_t>(handles.size())));
  for (std::size_t at = 0; at < handles.size(); ++at) {
    PyList_SET_ITEM(hashes.ptr(), at, taken(PyLong_FromLongLong(handles[at])).release().ptr());
  }
  return nb::cast<nb::list>(hashes);
}

nb::bytes token_bytes(const PlainBatch& batch, const PlainEvent& event, std::size_t limit) {
  const auto tokens = batch.tokens_of(event);
  return nb::bytes(tokens.data(), std::min(tokens.size(), limit));
}

// The event as index/event.py has it, with no more than `pages` pages of it.
nb::object plain_event(const PlainBatch& batch, std::size_t at, std::size_t pages) {
  const PlainEvent& event = event_at(batch, at);
  const nb::module_ events = nb::module_::import_("index.event");
  const nb::object medium = nb::module_::import_("index.worker").attr("Medium")(static_cast<int>(event.medium));
  const auto text = [](const std::string& value) { return value.empty() ? nb::object(nb::none()) : nb::cast(value); };
  switch (event.kind) {
    case PlainEvent::Kind::kCleared: return events.attr("AllBlocksCleared")();
    case PlainEvent::Kind::kRemoved: return events.attr("BlockRemoved")(hash_list(batch, event, pages), medium);
    case PlainEvent::Kind::kStored: break;
  }
  const std::size_t page_bytes = std::size_t{event.page_size} * (event.bigrams ? 8 : 4);
  const std::size_t token_limit = pages > SIZE_MAX / (page_bytes + 1) ? SIZE_MAX : pages * page_bytes;
  return events.attr("BlockStored")(
      hash_list(batch, event, pages), maybe(event.parent), token_bytes(batch, event, token_limit), event.page_size,
      medium, text(event.lora_name), nb::arg("cache_salt") = text(event.cache_salt), nb::arg("bigrams") = event.bigrams);
}

nb::object recorded(const PlainBatch& batch, const PlainEvent& event, std::string_view label) {
  const int medium = static_cast<int>(event.medium);
  const nb::list hashes = hash_list(batch, event, SIZE_MAX);
  if (event.kind == PlainEvent::Kind::kRemoved) return nb::make_tuple("r", medium, hashes);
  return nb::make_tuple("s", medium, maybe(event.parent), nb::str(label.data(), label.size()), event.page_size,
                        event.bigrams, hashes, token_bytes(batch, event, SIZE_MAX));
}

// Applies events of one batch to one worker and tells a Delta about it.
class Application {
 public:
  Application(RadixIndex& index, Slot slot, const PlainBatch& batch, const nb::object& delta)
      : index_(index), slot_(checked(index, slot)), batch_(batch), delta_(delta), operations_(delta.attr("operations")) {}
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  // `label` is how the namespace is recorded.
  void store(const PlainEvent& event, std::string_view name, std::string_view label) {
    const StoredPages stored{event.parent,    batch_.handles_of(event), batch_.tokens_of(event),
                             event.page_size, event.bigrams,            event.medium};
    tell_skip(delta_, index_.store(slot_, stored, name, done_));
    record(event, label);
  }

  void remove(const PlainEvent& event) {
    index_.remove(slot_, batch_.handles_of(event), event.medium, done_);
    record(event, {});
  }

  // Whether the tree alone knows what to do: no namespace is to be found, and the event is of this pool.
  bool knows(const PlainEvent& event) const {
    if (event.kind != PlainEvent::Kind::kStored) return event.kind == PlainEvent::Kind::kRemoved;
    return event.parent && event.token_count && event.page_size == index_.page_size() &&
           event.bigrams == (index_.unit_bytes() == 8);
  }

  void finish() { tell(delta_, done_); }

 private:
  void record(const PlainEvent& event, std::string_view label) {
    if (!operations_.is_none()) operations_.attr("append")(recorded(batch_, event, label));
  }

  RadixIndex& index_;
  Slot slot_;
  const PlainBatch& batch_;
  nb::object delta_;
  nb::object operations_;
  RadixDelta done_;
};

// Apply the events from `at` on up to the first one that needs more than the tree; answers its number.
std::size_t apply(RadixIndex& index, Slot slot, const PlainBatch& batch, std::size_t at, const nb::object& delta) {
  Application application(index, slot, batch, delta);
  for (; at < batch.events.size() && application.knows(batch.events[at]); ++at) {
    const PlainEvent& event = batch.events[at];
    if (event.kind == PlainEvent::Kind::kRemoved) {
      application.remove(event);
    } else {
      application.store(event, {}, {});
    }
  }
  application.finish();
  return at;
}

void store_plain(RadixIndex& index, Slot slot, const PlainBatch& batch, std::size_t at, nb::handle name,
                 nb::handle label, const nb::object& delta) {
  const PlainEvent& event = event_at(batch, at);
  if (event.kind != PlainEvent::Kind::kStored) throw nb::value_error("the event is no store");
  Application application(index, slot, batch, delta);
  application.store(event, name_of(name), name_of(label));
  application.finish();
}

nb::tuple counts(const PlainBatch& batch) {
  std::array<std::size_t, 3> counts{};
  for (const PlainEvent& event : batch.events) ++counts[static_cast<std::size_t>(event.kind)];
  return nb::make_tuple(counts[0], counts[1], counts[2]);
}

}  // namespace

void bind_applying(nb::class_<RadixIndex>& index) {
  index.def("apply", &apply).def("store_plain", &store_plain);
}

void bind_batch(nb::module_& module) {
  nb::class_<PlainBatch>(module, "PlainBatch", "See index/radix_payload.py.")
      .def("__len__", [](const PlainBatch& batch) { return batch.events.size(); })
      .def_prop_ro("ts", [](const PlainBatch& batch) { return batch.ts; })
      .def_prop_ro("dp_rank", [](const PlainBatch& batch) { return maybe(batch.rank); })
      .def_prop_ro("counts", &counts)
      .def("event", [](const PlainBatch& batch, std::size_t at) { return plain_event(batch, at, SIZE_MAX); })
      .def("head", [](const PlainBatch& batch, std::size_t at) { return plain_event(batch, at, 1); });
  module.def("plain_batch", &plain, nb::arg("payload"));
}

}  // namespace kvroute::radix

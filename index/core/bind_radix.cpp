// The radix index and SGLang's plain payloads for Python. Slots are checked here; what is told is checked by the index.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <cstring>

#include "core/bind_module.h"
#include "core/radix.h"
#include "core/radix_payload.h"

namespace nb = nanobind;

namespace kvroute::radix {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens and handles are used as they lie in memory");

constexpr Slot kMaxSlots = 1u << 20;
constexpr std::size_t kLongPayload = 16'384;  // bytes from which on other threads may run while it is read

nb::object taken(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

std::int64_t handle_of(nb::handle hash) {
  int overflow = 1;
  if (PyLong_Check(hash.ptr())) {
    const long long value = PyLong_AsLongLongAndOverflow(hash.ptr(), &overflow);
    if (!overflow) return value;
  }
  return nb::cast<std::int64_t>(nb::module_::import_("index.radix_holder").attr("handle_of")(hash));
}

std::vector<std::int64_t> handles_of(const nb::list& hashes) {
  std::vector<std::int64_t> handles;
  handles.reserve(hashes.size());
  for (const nb::handle hash : hashes) handles.push_back(handle_of(hash));
  return handles;
}

std::optional<std::int64_t> parent_of(nb::handle parent) {
  return parent.is_none() ? std::nullopt : std::optional(handle_of(parent));
}

Medium medium_of(nb::handle value) {
  const auto medium = nb::cast<std::int64_t>(value);
  if (medium < 0 || medium >= static_cast<std::int64_t>(kMedia)) throw nb::value_error("a medium is from 0 to 3");
  return static_cast<Medium>(medium);
}

// The text as UTF-8; nothing for one that has none (a lone surrogate), under which nothing can have been filed.
std::optional<std::string_view> text_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* start = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (start) return std::string_view(start, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

std::string_view name_of(nb::handle text) {
  const auto name = text_of(text);
  if (!name) throw nb::value_error("a namespace must be text without lone surrogates");
  return *name;
}

SlotSet slot_set(const nb::int_& slots) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(slots.ptr(), &overflow);
  if (!overflow && small >= 0) return {static_cast<std::uint64_t>(small)};
  const std::size_t words = nb::cast<std::size_t>(slots.attr("bit_length")()) / 64 + 1;
  const nb::bytes bytes(slots.attr("to_bytes")(words * 8, "little"));
  SlotSet set(words);
  std::memcpy(set.data(), bytes.data(), words * 8);
  return set;
}

Slot checked(const RadixIndex& index, Slot slot) {
  if (!index.has(slot)) throw nb::key_error("no worker in this slot");
  return slot;
}

void add_to(const nb::object& delta, const char* name, std::uint64_t count) {
  if (count) delta.attr(name) = delta.attr(name) + nb::int_(count);
}

void tell(const nb::object& delta, const RadixDelta& done) {
  add_to(delta, "stored", done.stored);
  add_to(delta, "removed", done.removed);
  add_to(delta, "orphans", done.orphans);
}

void tell_skip(const nb::object& delta, Skip skip) {
  if (skip != Skip::kUsed) delta.attr("skip")(name_of(skip));
}

void add(RadixIndex& index, Slot slot) {
  if (slot >= kMaxSlots || index.has(slot)) throw nb::value_error("the slot is taken, or above 2**20");
  index.add(slot);
}

void store(RadixIndex& index, Slot slot, nb::handle event, nb::handle name, const nb::object& delta) {
  const nb::list hashes = nb::cast<nb::list>(event.attr("block_hashes"));
  const nb::bytes tokens = nb::cast<nb::bytes>(event.attr("tokens"));
  const std::vector<std::int64_t> handles = handles_of(hashes);
  StoredPages stored{parent_of(event.attr("parent")), handles, bytes_of(tokens)};
  const auto page_size = nb::cast<std::int64_t>(event.attr("block_size"));
  stored.page_size = page_size < 0 ? 0 : static_cast<std::uint64_t>(page_size);
  stored.bigrams = nb::cast<bool>(event.attr("bigrams"));
  stored.medium = medium_of(event.attr("medium"));
  RadixDelta done;
  const Skip skip = index.store(checked(index, slot), stored, name_of(name), done);
  tell(delta, done);
  tell_skip(delta, skip);
}

void remove(RadixIndex& index, Slot slot, nb::handle event, const nb::object& delta) {
  RadixDelta done;
  const std::vector<std::int64_t> handles = handles_of(nb::cast<nb::list>(event.attr("block_hashes")));
  index.remove(checked(index, slot), handles, medium_of(event.attr("medium")), done);
  tell(delta, done);
}

nb::tuple by_medium(const std::array<std::uint32_t, kMedia>& pages, std::uint64_t unit) {
  nb::object counts = taken(PyTuple_New(kMedia));
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    PyTuple_SET_ITEM(counts.ptr(), medium, taken(PyLong_FromUnsignedLongLong(pages[medium] * unit)).release().ptr());
  }
  return nb::cast<nb::tuple>(counts);
}

// `Held` of index/radix_match.py: a tuple with names, made without calling its constructor.
nb::object held_tuple(PyTypeObject* type, const Held& held, std::uint64_t unit) {
  nb::object made = taken(type->tp_alloc(type, 3));
  PyTuple_SET_ITEM(made.ptr(), 0, taken(PyLong_FromUnsignedLong(held.slot)).release().ptr());
  PyTuple_SET_ITEM(made.ptr(), 1, taken(PyLong_FromUnsignedLongLong(held.pages * unit)).release().ptr());
  PyTuple_SET_ITEM(made.ptr(), 2, by_medium(held.by_medium, unit).release().ptr());
  return made;
}

nb::list match(const RadixIndex& index, const nb::bytes& tokens, const nb::list& names, const nb::int_& slots,
               nb::handle type) {
  if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), &PyTuple_Type)) {
    throw nb::type_error("the answers must be tuples");
  }
  std::vector<std::string_view> known;
  for (const nb::handle name : names) {
    if (const auto text = text_of(name)) known.push_back(*text);
  }
  const std::vector<Held> found = index.match(bytes_of(tokens), known, slot_set(slots));
  nb::object answers = taken(PyList_New(static_cast<Py_ssize_t>(found.size())));
  for (std::size_t at = 0; at < found.size(); ++at) {
    auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
    PyList_SET_ITEM(answers.ptr(), at, held_tuple(of, found[at], index.page_size()).release().ptr());
  }
  return nb::cast<nb::list>(answers);
}

nb::tuple pages(const RadixIndex& index, Slot slot) {
  const auto& pages = index.holder(checked(index, slot)).pages;
  return nb::make_tuple(pages[0], pages[1], pages[2], pages[3]);
}

nb::object maybe(const std::optional<std::int64_t>& value) {
  return value ? nb::object(nb::int_(*value)) : nb::none();
}

nb::list dump(RadixIndex& index, Slot slot) {
  nb::list runs;
  for (const DumpedRun& run : index.dump(checked(index, slot))) {
    const nb::bytes hashes(run.handles.data(), run.handles.size() * sizeof(std::int64_t));
    runs.append(nb::make_tuple(static_cast<int>(run.medium), maybe(run.parent), nb::str(run.name.data(), run.name.size()),
                               hashes, nb::bytes(run.tokens.data(), run.tokens.size())));
  }
  return runs;
}

nb::dict copies(const RadixIndex& index, Slot slot) {
  const Holder& holder = index.holder(checked(index, slot));
  nb::dict counts;
  for (const auto& [page, count] : holder.copies) counts[nb::int_(holder.name_of(page))] = count;
  return counts;
}

void restore_run(RadixIndex& index, Slot slot, nb::handle dumped) {
  const auto fields = nb::cast<nb::tuple>(dumped);
  if (fields.size() != 5) throw nb::value_error("a dumped run has five fields");
  DumpedRun run{medium_of(fields[0]), parent_of(fields[1]), name_of(fields[2]), {}, {}};
  const nb::bytes hashes = nb::cast<nb::bytes>(fields[3]), tokens = nb::cast<nb::bytes>(fields[4]);
  const std::size_t count = hashes.size() / sizeof(std::int64_t);
  const std::size_t page_bytes = std::size_t{index.page_size()} * index.unit_bytes();
  if (hashes.size() % sizeof(std::int64_t) || tokens.size() != count * page_bytes) {
    throw nb::value_error("the hashes and tokens of a dumped run do not fit each other");
  }
  run.handles.resize(count);
  if (count) std::memcpy(run.handles.data(), hashes.data(), hashes.size());
  run.tokens = bytes_of(tokens);
  index.restore(slot, run);
}

void restore(RadixIndex& index, Slot slot, const nb::list& runs, const nb::dict& copies) {
  checked(index, slot);
  for (const nb::handle run : runs) restore_run(index, slot, run);
  for (const auto [page, count] : copies) {
    index.restore_copies(slot, handle_of(page), nb::cast<std::int64_t>(count));
  }
}

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

void bind_index(nb::module_& module) {
  nb::class_<RadixIndex>(module, "RadixIndex", "See index/radix_native.py.")
      .def(nb::init<std::uint32_t, std::uint32_t>(), nb::arg("page_size"), nb::arg("unit_bytes"))
      .def_prop_ro("page_size", &RadixIndex::page_size)
      .def_prop_ro("unit_bytes", &RadixIndex::unit_bytes)
      .def_prop_ro("size_bytes", &RadixIndex::size_bytes)
      .def_prop_ro("table_bytes", &RadixIndex::table_bytes)
      .def_prop_ro("page_count", &RadixIndex::page_count)
      .def_prop_ro("node_count", &RadixIndex::node_count)
      .def("fault", &RadixIndex::fault)
      .def("pages", &pages)
      .def("parked", [](const RadixIndex& index, Slot slot) { return index.holder(checked(index, slot)).parked.count(); })
      .def("add", &add)
      .def("drop", [](RadixIndex& index, Slot slot) { index.drop(checked(index, slot)); })
      .def("clear", [](RadixIndex& index, Slot slot) { return index.clear(checked(index, slot)); })
      .def("store", &store)
      .def("remove", &remove)
      .def("match", &match)
      .def("dump", &dump)
      .def("copies", &copies)
      .def("restore", &restore)
      .def("apply", &apply)
      .def("store_plain", &store_plain);
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

}  // namespace
}  // namespace kvroute::radix

void kvroute::bind_radix(nb::module_& module) {
  radix::bind_index(module);
  radix::bind_batch(module);
}

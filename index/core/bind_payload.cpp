// Payloads of plain events into a pool, and the rule by which their blocks are checked, for Python.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <optional>

#include "core/bind_pool.h"
#include "core/block_check.h"

namespace kvroute {
namespace {

BlockRule rule_from(const nb::str& algorithm, const nb::bytes& none_hash) {
  const std::optional<HashAlgorithm> known = algorithm_named(algorithm.c_str());
  if (!known) throw nb::key_error(algorithm.c_str());
  BlockRule rule{*known, {BlockDigester(*known).digest_size(), {}}};
  if (none_hash.size() != rule.none_hash.size) throw nb::value_error("none_hash is a digest of the algorithm");
  std::ranges::copy(bytes_of(none_hash), rule.none_hash.bytes.begin());
  return rule;
}

nb::list operations_of(const Applied& applied) {
  nb::list operations;
  for (const std::vector<std::uint8_t>& one : applied.operations) operations.append(nb::bytes(one.data(), one.size()));
  return operations;
}

// One payload read and applied, its blocks checked by `rule` unless that is null.
struct Taken {
  PlainPayload plain;
  Applied applied;
  std::size_t matched = 0, unchecked = 0;

  bool read(const nb::bytes& payload) {
    plain.clear();
    return read_plain(bytes_of(payload), plain);
  }

  void apply(Pool& pool, std::uint32_t number, RequestKey root, bool record, const BlockRule* rule,
             std::uint32_t proven_size) {
    std::optional<BlockCheck> check;
    if (rule != nullptr) check.emplace(*rule, proven_size);
    applied = apply_plain(pool.holders, number, pool.layout(number), root, plain, record, check ? &*check : nullptr);
    matched = check ? check->matched() : 0;
    unchecked = check ? check->unchecked() : 0;
  }

  bool whole() const { return applied.done == plain.events.size() && applied.conflicts == 0; }

  nb::tuple told() const {
    return nb::make_tuple(plain.ts, plain.events.size(), applied.done, applied.stores, applied.removals,
                          applied.stored, applied.removed, applied.conflicts, operations_of(applied), matched,
                          unchecked);
  }
};

nb::object apply_payload(Pool& pool, std::uint32_t number, const nb::bytes& root, const nb::bytes& payload,
                         bool record, const BlockRule* rule, std::uint32_t proven_size) {
  Taken taken;
  if (!taken.read(payload)) return nb::none();
  taken.apply(pool, number, key_from(root), record, rule, proven_size);
  return taken.told();
}

// Payloads in order, until one is not plain, or is not applied to its end, or conflicts: how many before that, the last
// one's time, their stores and removals, their blocks that were checked and that could not be, what that one did if it
// was begun, and with `record` the time and the operations of each.
nb::tuple apply_payloads(Pool& pool, std::uint32_t number, const nb::bytes& root, const nb::list& payloads,
                         bool record, const BlockRule* rule, std::uint32_t proven_size) {
  const RequestKey key = key_from(root);
  Taken taken;
  std::size_t whole = 0, stores = 0, removals = 0, matched = 0, unchecked = 0;
  double ts = 0;
  nb::object begun = nb::none();
  nb::list recorded;
  for (nb::handle payload : payloads) {
    if (!taken.read(nb::cast<nb::bytes>(payload))) break;
    taken.apply(pool, number, key, record, rule, proven_size);
    if (taken.matched > 0) proven_size = static_cast<std::uint32_t>(pool.step() / 4);
    if (!taken.whole()) {
      begun = taken.told();
      break;
    }
    ++whole;
    stores += taken.applied.stores;
    removals += taken.applied.removals;
    matched += taken.matched;
    unchecked += taken.unchecked;
    ts = taken.plain.ts;
    if (record) recorded.append(nb::make_tuple(ts, operations_of(taken.applied)));
  }
  return nb::make_tuple(whole, ts, stores, removals, matched, unchecked, begun, recorded);
}

}  // namespace

void bind_payload(nb::module_& module, nb::class_<Pool>& pool) {
  nb::class_<BlockRule>(module, "BlockRule")
      .def("__init__", [](BlockRule* self, const nb::str& algorithm, const nb::bytes& none_hash) {
        new (self) BlockRule(rule_from(algorithm, none_hash));
      });
  pool.def("apply_payload", &apply_payload, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("rule").none(),
           nb::arg("proven_size"))
      .def("apply_payloads", &apply_payloads, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("rule").none(),
           nb::arg("proven_size"));
}

}  // namespace kvroute

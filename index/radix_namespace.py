"""Which namespace of the radix tree a root page, or a request, belongs to.

SGLang separates (extra_key, cache_salt), extra_key including the adapter's id. The default event format shows the salt
only; `"format": "dynamo"` shows the rest in the hash and nowhere else (sglang/srt/mem_cache/events.py, 0.5.22). A root
whose hash follows from its tokens and salt is filed by name. Any other root of a worker that sends SGLang's hashes is
filed by the hash of its first page, which a request that knows its extra_key, or its adapter's id, can compute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from index.adapter_loads import AdapterLoads
from index.event import BlockStored, EngineHash
from index.page_hash import namespaced, page_hashes, wire_int64
from index.radix_holder import handle_of
from index.radix_label import Filing, hidden, labelled, named, read_label

MAX_HIDDEN = 8_192  # (adapter, salt, first page) remembered
MAX_ALIKE = 256  # hidden namespaces remembered of each: one for every engine that loaded the adapter by itself


class NamespaceRequest(NamedTuple):
    """What a request says of its namespace. `lora_ids` are the ids its adapter may have, as far as they are known."""

    lora_name: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_ids: Collection[str] = ()


class Place(NamedTuple):
    """Namespaces, and the workers to be asked for them."""

    names: list[str]
    slots: int


class _Proof(Enum):
    """What the hash of a root follows from."""

    NOTHING = 0
    NAMES = 1
    FORMER_ID = 2
    LORA_ID = 3


class _Root(NamedTuple):
    """A first page as it is known by tokens, salt and adapter, and what the worker calls it."""

    first: bytes
    salt: str | None
    lora: str | None
    wire: int


class RadixNamespaces:
    """The namespaces of one pool. It remembers a bounded number of adapters' hidden ones, the oldest are forgotten.

    A slot is *genuine* when its hashes are known to be SGLang's, so that one which cannot be explained lies in a hidden
    namespace. Until then such a root is filed by name and the slot is *guessed*: misfiled, if it proves genuine later.
    `loads` knows of each slot how it got its adapters. Where one was seen with the id that follows from its path, what
    else the slot sends under its name belongs to extra_keys. A random id cannot be told from an id behind an extra_key:
    a slot that is declared to have these is not asked for adapters by their names, one that is declared to have none
    shows by a second id that an adapter was loaded again.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._genuine: set[int] = set()
        self._guessed: set[int] = set()
        self.loads = AdapterLoads()
        self._hidden: dict[tuple[str, str, bytes], dict[str, int]] = {}
        self._labels: dict[str, str] = {}

    def expect_dynamo(self, slot: int) -> None:
        """Discovery says that this worker sends the dynamo format: a hash not explained is a hidden namespace."""
        self._genuine.add(slot)

    def is_genuine(self, slot: int) -> bool:
        """Whether a hash of this worker that cannot be explained lies in a hidden namespace."""
        return slot in self._genuine

    def is_guessed(self, slot: int) -> bool:
        """Whether a root was filed by name although its hash does not follow from that."""
        return slot in self._guessed

    def is_misfiled(self, slot: int) -> bool:
        """Whether a root was filed by name, before it was known that its hash says something else."""
        return slot in self._genuine and slot in self._guessed

    def cleared(self, slot: int) -> None:
        """The worker holds nothing any more."""
        self._guessed.discard(slot)
        self.loads.cleared(slot)

    def forget(self, slot: int) -> None:
        """The worker is gone: what its slot says next is not known to be SGLang's."""
        self._genuine.discard(slot)
        self._guessed.discard(slot)
        self.loads.forget(slot)
        for key in list(self._hidden):
            self._take_out(slot, key)

    def load_again(self, slot: int, lora: str) -> bool:
        """The worker unloaded this adapter or has other weights under its name: what it holds of it is never answered.

        Whether that is news.
        """
        former = [name for key in list(self._hidden) if key[0] == lora for name in self._take_out(slot, key)]
        return self.loads.load_again(slot, lora, former)

    def of_root(self, slot: int, event: BlockStored, lora_ids: Sequence[str] = ()) -> Filing:
        """Where a store without a parent goes. `lora_ids` are known ids of the event's adapter, the present one first.

        Of an adapter that was loaded again all are former ones. Until a worker has sent a hash that could be explained,
        its hashes may be anything, so they say nothing.
        """
        salt, lora = event.cache_salt or None, event.lora_name or None
        root = self._root(event.block_hashes[:1], event.tokens, salt, lora)
        by_name = named(salt, lora)
        if root is None:
            return Filing(by_name, by_name)
        proof = self._proof(slot, root, lora_ids)
        if proof is not _Proof.NOTHING:
            self._genuine.add(slot)
        elif slot not in self._genuine:
            self._guessed.add(slot)
            return Filing(by_name, by_name)
        return Filing(by_name, by_name) if proof is _Proof.NAMES else self._hide(slot, root, proof)

    def relearn(
        self, slot: int, label: str, hashes: Sequence[EngineHash], tokens: bytes, lora_ids: Sequence[str] = ()
    ) -> str:
        """Learn from a stored root what was learnt from it before; answers its namespace. `of_root` gave the label."""
        told = read_label(label)
        if told is None:
            return label
        if told.wire is not None:
            self._genuine.add(slot)
            if told.lora is not None and len(tokens) >= self._page_bytes:
                root = _Root(tokens[: self._page_bytes], told.salt, told.lora, told.wire)
                self._hide(slot, root, self._proof_told(slot, root, lora_ids, fixed=told.fixed))
            return hidden(told.wire)
        known = self._root(hashes[:1], tokens, told.salt, told.lora)
        if known is not None and self._proof(slot, known, lora_ids) is _Proof.NOTHING:
            self._guessed.add(slot)
        elif known is not None:
            self._genuine.add(slot)
        return label

    def label(self, slot: int, namespace: str) -> str:
        """As what a worker's roots of a namespace are stored."""
        return namespace if self.loads.is_former(slot, namespace) else self._labels.get(namespace, namespace)

    def places(self, tokens: bytes, request: NamespaceRequest, slots: int) -> list[Place]:
        """Where a prompt, in unit form, lies if workers of `slots` hold it; of several the longest match counts.

        With an extra_key only the dynamo format can tell, so only the hidden namespace of that key is answered; the key
        may or may not end with the adapter's id.
        """
        first = tokens[: self._page_bytes]
        if len(first) < self._page_bytes:
            return []
        salt, lora, extra = request.cache_salt or None, request.lora_name or None, request.extra_key or None
        plain = self._plain(first, salt)
        if lora is None:
            return [Place([named(salt, None) if extra is None else hidden(namespaced(plain, extra, salt))], slots)]
        keys = [lora_id if extra is None else extra.removesuffix(lora_id) + lora_id for lora_id in request.lora_ids]
        places = [Place([hidden(namespaced(plain, key, salt)) for key in keys], slots & ~self.loads.again(lora))]
        if extra is None:
            places += [
                Place([named(salt, lora)], slots & ~self.loads.again(lora)),
                self._by_name((lora, salt or "", first), slots),
            ]
        return [place for place in places if place.names and place.slots]

    def _by_name(self, key: tuple[str, str, bytes], slots: int) -> Place:
        """The hidden namespaces seen with an adapter's name, salt and first page, where they may be answered."""
        among = slots & ~self.loads.mixed & ~self.loads.fixed(key[0])
        return Place([name for name, holders in self._hidden.get(key, {}).items() if holders & among], among)

    def _root(self, hashes: Sequence[EngineHash], tokens: bytes, salt: str | None, lora: str | None) -> _Root | None:
        """None: there is no whole first page, or no name for it."""
        first = tokens[: self._page_bytes]
        if len(first) < self._page_bytes or not hashes:
            return None
        return _Root(first, salt, lora, handle_of(hashes[0]))

    def _proof(self, slot: int, root: _Root, lora_ids: Sequence[str]) -> _Proof:
        plain = self._plain(root.first, root.salt)
        if root.wire in (plain, namespaced(plain, None, root.salt)):
            return _Proof.NAMES
        for position, lora_id in enumerate(lora_ids):
            if root.wire == namespaced(plain, lora_id, root.salt):
                again = root.lora is not None and self.loads.again(root.lora) >> slot & 1
                return _Proof.FORMER_ID if position or again else _Proof.LORA_ID
        return _Proof.NOTHING

    def _proof_told(self, slot: int, root: _Root, lora_ids: Sequence[str], *, fixed: bool) -> _Proof:
        """The proof of a root whose label says whether its adapter's id was fixed when it was filed."""
        if not fixed:
            return _Proof.NOTHING
        if root.lora is not None and self.loads.again(root.lora) >> slot & 1:
            return _Proof.FORMER_ID
        known = self._proof(slot, root, lora_ids) if lora_ids else _Proof.LORA_ID
        return known if known is _Proof.LORA_ID else _Proof.FORMER_ID

    def _plain(self, first: bytes, salt: str | None) -> int:
        return wire_int64(page_hashes(first, self._page_bytes, salt)[0])

    def _hide(self, slot: int, root: _Root, proof: _Proof) -> Filing:
        """File a root by its wire hash; what may be asked for by its adapter's name is remembered."""
        name = hidden(root.wire)
        if root.lora is None or proof is _Proof.FORMER_ID or self.loads.is_former(slot, name):
            return Filing(name, name)
        key = (root.lora, root.salt or "", root.first)
        if proof is _Proof.LORA_ID:
            self.loads.prove(slot, root.lora)
        elif self._shows_another_load(slot, key, name):
            self.load_again(slot, root.lora)
        else:
            if self._is_second(slot, key, name):
                self.loads.doubt(slot, root.lora)
            if self.loads.fixed(root.lora) >> slot & 1:
                return Filing(name, name)
        label = labelled(root.wire, root.salt, root.lora, fixed=proof is _Proof.LORA_ID)
        if proof is _Proof.LORA_ID or name not in self._labels:
            self._labels[name] = label
        self._remember(key, name, slot)
        return Filing(name, label)

    def _shows_another_load(self, slot: int, key: tuple[str, str, bytes], name: str) -> bool:
        """Whether a root that is not explained shows that its adapter was loaded again: without extra_keys one load
        has one name for a page."""
        return bool(self.loads.alone >> slot & 1) and self._is_second(slot, key, name)

    def _is_second(self, slot: int, key: tuple[str, str, bytes], name: str) -> bool:
        """Whether the worker has another name for the page, or an id of the adapter that does not explain this one."""
        others = self._hidden.get(key, {}).items()
        known = any(slots >> slot & 1 for other, slots in others if other != name)
        return known or bool(self.loads.fixed(key[0]) >> slot & 1)

    def _remember(self, key: tuple[str, str, bytes], name: str, slot: int) -> None:
        names = self._hidden.pop(key, {})
        self._hidden[key] = names
        names[name] = names.pop(name, 0) | 1 << slot
        if len(names) > MAX_ALIKE:
            self._drop(key, next(iter(names)))
        if len(self._hidden) > MAX_HIDDEN:
            oldest = next(iter(self._hidden))
            for old in list(self._hidden[oldest]):
                self._drop(oldest, old)

    def _take_out(self, slot: int, key: tuple[str, str, bytes]) -> list[str]:
        """A worker is not to be asked for these hidden namespaces any more; those of them that it was."""
        taken = [name for name, slots in self._hidden[key].items() if slots >> slot & 1]
        for name in taken:
            self._hidden[key][name] &= ~(1 << slot)
            if not self._hidden[key][name]:
                self._drop(key, name)
        return taken

    def _drop(self, key: tuple[str, str, bytes], name: str) -> None:
        names = self._hidden[key]
        del names[name]
        self._labels.pop(name, None)
        if not names:
            del self._hidden[key]

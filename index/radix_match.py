"""How far each worker holds a prompt: one walk down the radix tree for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from index.radix_node import Node, shared_run, slots_of


class Held(NamedTuple):
    """The leading run of a prompt that the worker of a slot holds, in units; each unit at its fastest medium."""

    slot: int
    units: int
    by_medium: tuple[int, int, int, int]


def match_prefix(root: Node, tokens: bytes, page_bytes: int, slots: int) -> list[Held]:
    """The workers among `slots` that hold a page or more of the prompt, in pages; stops where the last one stops."""
    answers: list[Held] = []
    slower: dict[int, list[int]] = {}
    alive, depth, node = slots, 0, root
    while alive:
        at = depth * page_bytes
        child = node.children.get(tokens[at : at + page_bytes])
        if child is None:
            break
        node = child
        gpu, cpu, disk, other = node.masks
        held = gpu | cpu | disk | other
        if lost := alive & ~held:
            answers += _answers(lost, depth, slower) if depth else ()
            alive &= held
            if not alive:
                break
        pages = _covered(node, tokens, at, page_bytes)
        if off_gpu := alive & ~gpu:
            _count_slower(off_gpu, node, pages, slower)
        depth += pages
        if pages < len(node.hashes):
            break
    return answers + _answers(alive, depth, slower)


def deepest(matches: Iterable[Held], unit: int) -> list[Held]:
    """Per worker the longest of several matches, in pages of `unit` units."""
    best: dict[int, Held] = {}
    for match in matches:
        if match.slot not in best or match.units > best[match.slot].units:
            best[match.slot] = match
    if unit == 1:
        return list(best.values())
    return [_scaled(match, unit) for match in best.values()]


def _covered(node: Node, tokens: bytes, at: int, page_bytes: int) -> int:
    """How many pages of the node the prompt has at byte `at`."""
    if tokens.startswith(node.tokens, at):
        return len(node.hashes)
    return shared_run(node.tokens, tokens[at : at + len(node.tokens)], page_bytes)


def _count_slower(off_gpu: int, node: Node, pages: int, slower: dict[int, list[int]]) -> None:
    """Note, for the holders that lack the node on the GPU, at which medium they have it."""
    for medium in (1, 2, 3):
        for slot in slots_of(off_gpu & node.masks[medium]):
            slower.setdefault(slot, [0, 0, 0, 0])[medium] += pages
        off_gpu &= ~node.masks[medium]


def _answers(slots: int, depth: int, slower: dict[int, list[int]]) -> list[Held]:
    if not depth:
        return []
    answers = []
    for slot in slots_of(slots):
        _, cpu, disk, other = slower.get(slot, (0, 0, 0, 0))
        answers.append(Held(slot, depth, (depth - cpu - disk - other, cpu, disk, other)))
    return answers


def _scaled(match: Held, unit: int) -> Held:
    gpu, cpu, disk, other = match.by_medium
    return Held(match.slot, match.units * unit, (gpu * unit, cpu * unit, disk * unit, other * unit))

"""How the rows of a forward pass lie side by side: rows with one prompt share it, and short ones fill a line together.

Both need an attention mask, which costs time: a line of W columns then pays for W x W pairs of tokens, in a slower
kernel. So the arrangement is the cheapest of a few by one rule: a token's attention costs a share per column of its
line, on top of the token itself. A mask is never worth more than the padding and the copies of prompts that it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Row = tuple[Sequence[int], Sequence[int]]  # prompt ids, completion ids
Unit = Sequence[Row]
"""Rows that go through one forward pass together: one row, or the two completions of a pair."""
Item = list[int]
"""Rows with one prompt, which stands once in front of their completions."""
Line = list[Item]


@dataclass(frozen=True)
class Packing:
    """What attention costs a model, in units of all its other work on one token, for each column of the token's line.

    `masked` and `causal` are with a mask and without one; `widest` is the width of the widest line with a mask, None
    where there is no limit.
    """

    masked: float
    causal: float
    widest: int | None = None


class Size(NamedTuple):
    """A row's measures: which prompt it has (equal prompts have equal numbers), and the lengths of its two parts."""

    group: int
    prompt: int
    completion: int

    @property
    def length(self) -> int:
        return self.prompt + self.completion


class Segment(NamedTuple):
    """A prompt or a completion: the columns `start` to `stop` of the line `line`.

    row: whose tokens they are (of a shared prompt: one of the rows). prompt: the columns of the prompt that a
    completion continues, None for a prompt.
    """

    line: int
    start: int
    stop: int
    row: int
    prompt: tuple[int, int] | None = None


def sizes_of(rows: Sequence[Row]) -> list[Size]:
    """The measures of the rows, their prompts numbered in the order in which they come."""
    numbers: dict[tuple[int, ...], int] = {}
    return [Size(numbers.setdefault(tuple(p), len(numbers)), len(p), len(c)) for p, c in rows]


def is_plain(lines: Sequence[Line]) -> bool:
    """Whether every line holds one row, so that causal attention alone keeps everything apart."""
    return all(len(line) == 1 and len(line[0]) == 1 for line in lines)


def arrange(sizes: Sequence[Size], packing: Packing | None) -> list[Line]:
    """The cheapest arrangement of the rows; one row a line where the model takes nothing else (`packing` is None)."""
    plain: list[Line] = [[[row]] for row in range(len(sizes))]
    if packing is None:
        return plain
    packed = [first_fit(items, sizes) for items in _shared(sizes)]
    allowed = [lines for lines in packed if packing.widest is None or width_of(lines, sizes) <= packing.widest]
    return min([plain, *allowed], key=lambda lines: _cost(lines, sizes, packing))


def first_fit(items: Sequence[Item], sizes: Sequence[Size]) -> list[Line]:
    """The items in lines as wide as the longest one: longest first, each in the first line with room for it."""
    lengths = [_length(item, sizes) for item in items]
    width = max(lengths)
    lines: list[Line] = []
    rooms: list[int] = []
    for number in sorted(range(len(items)), key=lambda i: -lengths[i]):
        length = lengths[number]
        place = next((k for k, room in enumerate(rooms) if room >= length), None)
        if place is None:
            lines.append([items[number]])
            rooms.append(width - length)
        else:
            lines[place].append(items[number])
            rooms[place] -= length
    return lines


def segments_of(lines: Sequence[Line], sizes: Sequence[Size]) -> Iterator[Segment]:
    """Where every prompt and completion stands, from left to right."""
    for number, line in enumerate(lines):
        start = 0
        for item in line:
            stop = start + sizes[item[0]].prompt
            prompt = (start, stop)
            yield Segment(number, start, stop, item[0])
            for row in item:
                start, stop = stop, stop + sizes[row].completion
                yield Segment(number, start, stop, row, prompt)
            start = stop


def microbatches(units: Sequence[Unit], budget_tokens: int, packing: Packing | None = None) -> list[list[int]]:
    """Groups of unit numbers whose batch has at most `budget_tokens` tokens (lines times width), longest rows first.

    Units with one prompt follow each other. A unit that is larger than the budget stands alone.
    """
    flat = iter(sizes_of([row for unit in units for row in unit]))
    sizes = [[next(flat) for _ in unit] for unit in units]
    order = _in_order(sizes)
    groups: list[list[int]] = []
    start = 0
    while start < len(order):

        def fits(count: int, start: int = start) -> bool:
            rows = [size for unit in order[start : start + count] for size in sizes[unit]]
            return _tokens(arrange(rows, packing), rows) <= budget_tokens

        count = _most(fits, len(order) - start)
        groups.append(order[start : start + count])
        start += count
    return groups


def _in_order(units: Sequence[Sequence[Size]]) -> list[int]:
    """Unit numbers by their longest row, those with the prompt of a longer one behind it."""
    longest = [max(size.length for size in unit) for unit in units]
    leader: dict[int, tuple[int, int]] = {}  # of each prompt: the longest row, and the first unit that has it
    for number, unit in enumerate(units):
        key = (-longest[number], number)
        leader[unit[0].group] = min(key, leader.get(unit[0].group, key))
    return sorted(range(len(units)), key=lambda i: (leader[units[i][0].group], -longest[i], i))


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that fits, by doubling steps and then halving them; at least 1."""
    found = step = 1
    while found + step <= limit and fits(found + step):
        found += step
        step *= 2
    while step > 1:
        step //= 2
        if found + step <= limit and fits(found + step):
            found += step
    return found


def _shared(sizes: Sequence[Size]) -> Iterator[list[Item]]:
    """The rows as items of at most 1, 2, 4, ... rows; the last time, all rows with one prompt are one item."""
    groups: dict[int, Item] = {}
    for row in sorted(range(len(sizes)), key=lambda i: -sizes[i].completion):
        groups.setdefault(sizes[row].group, []).append(row)
    largest, most = max(map(len, groups.values())), 1
    while True:
        yield [part for group in groups.values() for part in _parts(group, most)]
        if most >= largest:
            return
        most *= 2


def _parts(group: Item, most: int) -> list[Item]:
    """`group` in as few parts of at most `most` as there can be, of nearly equal numbers and lengths."""
    count = -(-len(group) // most)
    return [group[first::count] for first in range(count)]


def _length(item: Item, sizes: Sequence[Size]) -> int:
    return sizes[item[0]].prompt + sum(sizes[row].completion for row in item)


def width_of(lines: Sequence[Line], sizes: Sequence[Size]) -> int:
    """The tokens of the longest line."""
    return max(sum(_length(item, sizes) for item in line) for line in lines)


def _tokens(lines: Sequence[Line], sizes: Sequence[Size]) -> int:
    return len(lines) * width_of(lines, sizes)


def _cost(lines: Sequence[Line], sizes: Sequence[Size], packing: Packing) -> float:
    width = width_of(lines, sizes)
    return len(lines) * width * (1 + width * (packing.causal if is_plain(lines) else packing.masked))

"""How varied completions are, on token ids without the terminator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from posttrain.evaluation.statistics import Estimate, jackknife

Ids = Sequence[int]
Bigram = tuple[int, int]


def bigrams(ids: Ids) -> list[Bigram]:
    """Neighbouring pairs of one completion, in order."""
    return list(pairwise(ids))


def distinct_2(completions: Sequence[Ids]) -> Estimate:
    """Different bigrams over all bigrams of all completions (Li et al. 2016, arXiv:1510.03055, section 5), in [0, 1].

    Low values mean that the model says the same thing whatever the prompt. The interval is the jackknife's over
    completions. 0 where there is no bigram.
    """
    counts = [Counter(bigrams(ids)) for ids in completions]
    whole: Counter[Bigram] = Counter()
    for count in counts:
        whole.update(count)
    kinds, total = len(whole), whole.total()
    left_out = []
    for count in counts:
        alone = sum(whole[bigram] == times for bigram, times in count.items())
        left_out.append(_share(kinds - alone, total - count.total()))
    value = _share(kinds, total)
    found = jackknife(value, left_out)
    return Estimate(value, max(found.low, 0.0), min(found.high, 1.0), found.n)


def repetition(ids: Ids) -> float:
    """Share of one completion's bigrams that it has had before, in [0, 1); 0 below two tokens."""
    pairs = bigrams(ids)
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

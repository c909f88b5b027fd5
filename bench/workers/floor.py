"""The floor: plain PyTorch calls of the model for the least that a step must compute. README.md defines it.

usage: python -m bench.workers.floor TASK.json
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.runtime.threads import apply_threads, set_thread_environment

set_thread_environment(1)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache  # noqa: E402

from bench.flops import Facts, part_flops  # noqa: E402
from bench.meter import Meter, read_task, write_result  # noqa: E402
from bench.work import Part, Work, floor_parts  # noqa: E402

MATMUL_SIZES = (512, 1024)
CALLS = (1, 2, 4, 8)
TRIES = 3


class Role:
    """A model with a scalar head beside its own, and AdamW where it trains."""

    def __init__(self, folder: Path, trains: bool, lora: bool) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.scalar = nn.Linear(self.model.config.hidden_size, 1, bias=False)
        self.trunk, self.lm_head = self.model.model, self.model.lm_head
        self.parameters: list[nn.Parameter] = []
        if lora:
            self._adapt()
        if trains:
            own = [p for p in self.model.parameters() if p.requires_grad]
            self.parameters = [*own, *self.scalar.parameters()]
            self.optimiser = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True)
        else:
            self.model.requires_grad_(False)

    def _adapt(self) -> None:
        from peft import LoraConfig, get_peft_model

        get_peft_model(self.model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))

    def loss(self, ids: Tensor, places: int, head: str) -> Tensor:
        """Of the last `places` of each row; of the last one alone for a score."""
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        total = hidden.new_zeros(())
        if head in ("lm", "both"):
            logits = self.lm_head(hidden[:, -places:]).flatten(0, 1)
            total = total + F.cross_entropy(logits, ids[:, -places:].flatten(), reduction="sum")
        if head in ("value", "both"):
            total = total + self.scalar(hidden[:, -places:]).sum()
        if head == "score":
            total = total + self.scalar(hidden[:, -1]).sum()
        return total

    def train(self, blocks: list[Tensor], places: int, head: str) -> None:
        """Forward and backward passes, one for each block of rows."""
        for ids in blocks:
            self.loss(ids, places, head).backward()

    @torch.no_grad()
    def forward(self, blocks: list[Tensor], places: int, head: str) -> None:
        """Forward passes alone."""
        for ids in blocks:
            self.loss(ids, places, head)

    def optimise(self) -> None:
        """Clipping and AdamW's step."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    @torch.no_grad()
    def generate(self, prompts: Tensor, group: int, new: int) -> None:
        """Prompts once, their cache for each row of a group, then a token of each row at a time, the most probable."""
        cache = DynamicCache(config=self.model.config)
        logits = self.model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        cache.batch_repeat_interleave(group)
        tokens = logits[:, -1:].argmax(-1).repeat_interleave(group, 0)
        for _ in range(new - 1):
            tokens = self.model(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1)


class Floor:
    """Runs the parts of a row, each in the number of calls that was the fastest."""

    def __init__(self, work: Work, parts: list[Part], folder: Path) -> None:
        self.work, self.parts = work, parts
        trains = {part.role for part in parts if part.kind == "optimise"}
        roles = {part.role for part in parts}
        self.roles = {role: Role(folder, role in trains, work.lora) for role in roles}
        self.vocabulary = self.roles["policy"].model.config.vocab_size

    def prepare(self, part: Part, calls: int) -> Callable[[], None]:
        """The part as a call without its inputs' making."""
        role = self.roles[part.role]
        if part.kind == "optimise":
            return role.optimise
        if part.kind == "generate":
            prompts = self._ids(self.work.rows // self.work.group, self.work.prompt)
            return lambda: role.generate(prompts, self.work.group, self.work.completion)
        rows, length, places = part.shape.block
        blocks = list(self._ids(rows, length).chunk(calls))
        act = role.train if part.kind == "train" else role.forward
        return lambda: act(blocks, places, part.head)

    def seconds(self, part: Part, calls: int) -> float:
        """CPU time of the part in one step: rows of equal length may have a token more or less than the row's own."""
        act = self.prepare(part, calls)
        begun = time.process_time()
        act()
        spent = time.process_time() - begun
        if part.kind in ("train", "forward"):
            rows, length, _ = part.shape.block
            spent *= part.shape.tokens / (rows * length)
        return spent * part.times

    def best_calls(self, part: Part) -> int:
        """The number of calls that is the fastest: a smaller one may fit better into the caches."""
        if part.kind not in ("train", "forward"):
            return 1
        found = {calls: float("inf") for calls in CALLS if calls <= part.shape.block[0]}
        for _ in range(TRIES):
            for calls in found:
                found[calls] = min(found[calls], self.seconds(part, calls))
        return min(found, key=found.__getitem__)

    def _ids(self, rows: int, length: int) -> Tensor:
        return torch.randint(0, self.vocabulary, (rows, length))


def facts_of(model: Any) -> Facts:
    """Of a Llama."""
    config, trunk = model.config, model.model
    return Facts(
        matrices=sum(p.numel() for n, p in trunk.layers.named_parameters() if p.ndim == 2 and "lora" not in n),
        attention=config.num_attention_heads * trunk.layers[0].self_attn.head_dim,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
    )


def matmul_rate() -> float:
    """Floating-point operations in a second of square float32 products of the better size."""
    found = []
    for size in MATMUL_SIZES:
        a, b = torch.rand(size, size), torch.rand(size, size)
        for _ in range(8):
            begun = time.process_time()
            torch.mm(a, b)
            found.append(2 * size**3 / (time.process_time() - begun))
    return max(found)


def main() -> None:
    """One process of the bench."""
    task = read_task()
    work = Work(**task["work"])
    apply_threads(1)
    torch.manual_seed(0)
    lengths = [tuple(pair) for pair in json.loads((Path(task["data"]) / "lengths.json").read_text())]
    parts = floor_parts(work, lengths)
    rate = matmul_rate()
    meter = Meter()
    floor = Floor(work, parts, Path(task["models"]) / "policy" / "model")
    facts = facts_of(floor.roles["policy"].model)
    calls = task.get("calls") or [floor.best_calls(part) for part in parts]
    steps: list[list[float]] = []
    for _ in range(work.total_steps):
        steps.append([floor.seconds(part, number) for part, number in zip(parts, calls, strict=True)])
        meter.end_step(0)
    result = meter.result(work.warmup, {"torch": torch.__version__, "transformers": transformers.__version__})
    measured = steps[work.warmup :]
    result.update(
        seconds=[sum(step) for step in measured],
        parts=[
            {
                **dataclasses.asdict(part),
                "calls": number,
                "seconds": [step[i] for step in measured],
                "flops": part_flops(part, facts, work),
            }
            for i, (part, number) in enumerate(zip(parts, calls, strict=True))
        ],
        calls=calls,
        matmul_rate=rate,
    )
    write_result(task, result)


if __name__ == "__main__":
    main()

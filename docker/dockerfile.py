"""Read the few Dockerfile instructions that ours uses and say them as an Apptainer definition.

Supported: one FROM, ARG, ENV, RUN (shell form), COPY (from the context), WORKDIR, LABEL. Everything else is refused, so
that an image built here never silently lacks what `docker build` would have put in it. Variables follow the Dockerfile
reference: an ARG before FROM holds in FROM only, ENV wins over ARG, `${NAME:-word}` and `${NAME:+word}` are known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.errors import UserError

VARIABLE = re.compile(r"\$\{(?P<braced>\w+)(?::(?P<sign>[-+])(?P<word>[^}]*))?\}|\$(?P<plain>\w+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its line number in the Dockerfile, its keyword in capitals and the text after it."""

    line: int
    keyword: str
    text: str


@dataclass
class Translation:
    """What an image is made of: the base reference, the build script, and the environment and labels it keeps."""

    base: str = ""
    script: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)

    def definition(self, bootstrap: str, source: str) -> str:
        """The Apptainer definition file on top of `Bootstrap: bootstrap`, `From: source`."""
        exports = [f"export {name}={_for_shell(value)}" for name, value in self.environment.items()]
        sections = {
            "post": self.script,
            "environment": exports,
            "labels": [f"{name} {value}" for name, value in self.labels.items()],
        }
        text = f"Bootstrap: {bootstrap}\nFrom: {source}\n"
        return text + "".join(f"\n%{name}\n" + "\n".join(lines) + "\n" for name, lines in sections.items() if lines)


def parse(text: str) -> list[Instruction]:
    """Split a Dockerfile into instructions: comments and empty lines dropped, continued lines joined.

    Raises:
        UserError: a continuation at the end of the file, or a line without an instruction.
    """
    instructions: list[Instruction] = []
    parts: list[str] = []
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start if parts else number
        parts.append(line.removesuffix("\\").strip())
        if line.endswith("\\"):
            continue
        keyword, _, rest = " ".join(part for part in parts if part).partition(" ")
        if not rest.strip():
            raise UserError(f"Dockerfile line {start}: `{keyword}` stands alone; give it its text.")
        instructions.append(Instruction(start, keyword.upper(), rest.strip()))
        parts = []
    if parts:
        raise UserError(f"Dockerfile line {start}: the file ends within a continued line; remove the last backslash.")
    return instructions


def substitute(text: str, known: Mapping[str, str]) -> str:
    """Replace variables by their known values. An unknown one stays, for the shell of the image (`$PATH`)."""

    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        if match["sign"] == "+":
            return match["word"] if known.get(name) else ""
        if match["sign"] == "-":
            return known.get(name) or match["word"]
        return known.get(name, f"${{{name}}}")

    return VARIABLE.sub(value, text)


def _pairs(instruction: Instruction, known: Mapping[str, str]) -> dict[str, str]:
    """`A=1 B="two words"` as a mapping, with variables replaced."""
    pairs = {}
    for word in shlex.split(instruction.text):
        name, equals, value = word.partition("=")
        if not equals:
            raise _fault(instruction, f"write {instruction.keyword} as NAME=value, not `{word}`.")
        pairs[name] = substitute(value, known)
    return pairs


def _fault(instruction: Instruction, text: str) -> UserError:
    return UserError(f"Dockerfile line {instruction.line}: {text}")


def _for_shell(value: str) -> str:
    """Double-quoted for a POSIX shell, leaving `${NAME}` for it to replace."""
    return '"' + re.sub(r'([\\"`])', r"\\\1", value) + '"'


class Translator:
    """Walks through the instructions once; `arguments` are the `--build-arg` values."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        self.arguments = dict(arguments)
        self.declared: set[str] = set()
        self.outer: dict[str, str] = {}
        self.local: dict[str, str] = {}
        self.folder = "/"
        self.result = Translation()

    @property
    def known(self) -> dict[str, str]:
        return {**self.local, **self.result.environment}

    def translate(self, text: str) -> Translation:
        """Translate a whole Dockerfile; see the module for what is refused."""
        for instruction in parse(text):
            action = getattr(self, f"_{instruction.keyword.lower()}", None)
            if action is None:
                names = "ARG, FROM, ENV, RUN, COPY, WORKDIR and LABEL"
                raise _fault(instruction, f"{instruction.keyword} is not understood; use {names}.")
            if not self.result.base and instruction.keyword not in ("ARG", "FROM"):
                raise _fault(instruction, f"{instruction.keyword} stands before FROM; move it below.")
            action(instruction)
        if not self.result.base:
            raise UserError("The Dockerfile has no FROM; name the base image in it.")
        if unused := sorted(set(self.arguments) - self.declared):
            raise UserError(f"The Dockerfile has no ARG {unused[0]}; declare it or leave that argument out.")
        return self.result

    def _arg(self, instruction: Instruction) -> None:
        scope = self.local if self.result.base else self.outer
        words = shlex.split(instruction.text)
        if len(words) != 1:
            raise _fault(instruction, "write one ARG per line, its value in quotes.")
        name, equals, default = words[0].partition("=")
        self.declared.add(name)
        fallback = substitute(default, {**scope, **self.result.environment}) if equals else self.outer.get(name)
        value = self.arguments.get(name, fallback)
        if value is not None:
            scope[name] = value

    def _from(self, instruction: Instruction) -> None:
        if self.result.base:
            raise _fault(instruction, "a second FROM; only images of one stage are built here.")
        words = substitute(instruction.text, self.outer).split()
        if len(words) != 1 or "$" in words[0]:
            raise _fault(instruction, f"FROM takes one image reference, not `{' '.join(words)}`.")
        self.result.base = words[0]

    def _env(self, instruction: Instruction) -> None:
        # All values of one ENV see the environment before it.
        self.result.environment.update(_pairs(instruction, self.known))

    def _label(self, instruction: Instruction) -> None:
        self.result.labels.update(_pairs(instruction, self.known))

    def _run(self, instruction: Instruction) -> None:
        if instruction.text.startswith(("[", "--")) or "<<" in instruction.text:
            raise _fault(instruction, "RUN takes a plain shell command, no list, option or here-document.")
        # As Docker does it: a shell of its own in the working folder, with ARG and ENV in its environment.
        environment = self.result.environment
        names = [f"{name}={shlex.quote(value)}" for name, value in self.local.items() if name not in environment]
        names += [f"{name}={_for_shell(value)}" for name, value in environment.items()]
        self.result.script.append(f"cd {shlex.quote(self.folder)}")
        self.result.script.append(" ".join(["env", *names, "/bin/sh", "-c", shlex.quote(instruction.text)]))

    def _copy(self, instruction: Instruction) -> None:
        words = shlex.split(substitute(instruction.text, self.known))
        if len(words) != 2 or words[0].startswith("--") or "$" in instruction.text.replace("${", ""):
            raise _fault(instruction, "write COPY as `COPY file destination`, variables as ${NAME}.")
        source, target = words
        target = target if target.startswith("/") else f"{self.folder.rstrip('/')}/{target}"
        folder = target if target.endswith("/") else target.rpartition("/")[0] or "/"
        self.result.copied.append(source)
        self.result.script.append(f"mkdir -p {shlex.quote(folder)}")
        self.result.script.append(f"cp {shlex.quote('/mnt/context/' + source)} {shlex.quote(target)}")

    def _workdir(self, instruction: Instruction) -> None:
        folder = substitute(instruction.text, self.known)
        self.folder = folder if folder.startswith("/") else f"{self.folder.rstrip('/')}/{folder}"
        self.result.script.append(f"mkdir -p {shlex.quote(self.folder)}")

"""README, CONTRIBUTING and docs/ name only what exists, and the README's results are those of docs/results."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.cli import DvcParserError
from dvc.cli.parser import get_main_parser
from snakemake.cli import get_argument_parser

from posttrain.cli import _parser
from posttrain.config.load import json_schema

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
SCHEMA = json_schema()
# Known to no schema because it is a user's own, or the other side of a mapping.
PLACEHOLDERS = re.compile(r"<\w+>|\bNAME\b|\bFILE\b|\bFOLDER\b|\bVERSION\b|\bOUT\b|\bmy-model\b|owner/name|org/name")
SUFFIXES = r"(?:yaml|md|py|smk|lock|in|dvc|json|txt|toml)"
PROGRAMS = ("posttrain", "make", "snakemake", "dvc", "python", ".venv/bin/python")


def spans(text: str) -> list[str]:
    """What stands in single backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def blocks(text: str, language: str) -> list[str]:
    return [
        body for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if name == language
    ]


def commands(text: str) -> list[list[str]]:
    """The words of every command that a page shows, in a block or between backticks."""
    lines = [line for block in [*blocks(text, "bash"), *blocks(text, "")] for line in block.splitlines()]
    found = []
    for line in [*lines, *spans(text)]:
        for part in re.split(r"&&|;", line.partition("  #")[0]):
            try:
                words = shlex.split(part.partition(" # ")[0])
            except ValueError:
                continue
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if len(words) > 1 and words[0] in PROGRAMS:
                found.append(words)
    return found


def tracked() -> set[str]:
    """Files of the repository and all their folders."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [Path(line) for line in listing.stdout.splitlines() if (ROOT / line).exists()]
    data = [Path("data") / path.name for path in (ROOT / "data").iterdir()]  # DVC's, not git's
    return {str(path) for file in [*files, *data] for path in (file, *file.parents)}


@functools.cache
def source() -> str:
    """All code and configuration, in which every name that a page uses must occur."""
    folders = ("posttrain", "workflow", "docker", "configs", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".smk", ".json")]
    files += [*(ROOT / "configs").glob("*.yaml"), ROOT / "Makefile", ROOT / "Snakefile", ROOT / "config.yaml"]
    files.remove(Path(__file__))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


# --- the table ------------------------------------------------------------------------------------------------------


@functools.cache
def table() -> Any:
    spec = importlib.util.spec_from_file_location("results_table", ROOT / "docs/results/table.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_are_those_of_docs_results() -> None:
    """Mended by `python docs/results/table.py --write`."""
    assert table().between_markers(TEXTS["README.md"]) == table().results()


def test_cells_by_hand(tmp_path: Path) -> None:
    (tmp_path / "summary.csv").write_text(
        "run,method,seed,prompts,flags,judge_gain,judge_gain_low,judge_gain_high,kl,kl_low,kl_high,kl_error\n"
        "sft,sft,,256,,,,,0,0,0,0\n"
        "ppo,ppo,0,256,none,0.21349,0.15,0.2751,3.456,3,4,0.211\n"
        "hack,grpo,0,256,most_kl;least_distinct_2,-0.00049,-0.1,0.1,31,30,32,0.5\n"
    )
    (tmp_path / "seeds.csv").write_text(
        "group,method,seeds,runs,judge_gain,judge_gain_low,judge_gain_high,kl,kl_low,kl_high,judge_gain_above_0,"
        "reward_gain_above_0\nppo,ppo,3,ppo-0;ppo-1;ppo-2,0.2,0.1,0.3,3.1,2,4,3,\n"
    )
    (tmp_path / "hacking.csv").write_text("run,method,seed,prompts,flags,kl,kl_error\nhack,grpo,0,256,most_kl,31,0.5\n")
    lines = [line for line in table().results(tmp_path).splitlines() if line.startswith("|")]
    assert lines == [
        "| Run | Judge gain | KL | Flags |",
        "| --- | ---: | ---: | --- |",
        "| SFT (baseline) | \N{EN DASH} | 0.00 ± 0.00 | \N{EN DASH} |",
        "| `ppo` | +0.213 [0.150, 0.275] | 3.46 ± 0.21 | none |",
        "| `hack` | 0.000 [-0.100, 0.100] | 31.00 ± 0.50 | most_kl, least_distinct_2 |",
        "| Group | Seeds | Judge gain | KL | Judge gain > 0 in |",
        "| --- | ---: | ---: | ---: | --- |",
        "| `ppo` | 3 | +0.200 [0.100, 0.300] | 3.10 | 3 |",
        "| Run | KL | Flags |",
        "| --- | ---: | --- |",
        "| `hack` | 31.00 ± 0.50 | most_kl |",
    ]
    assert "256 held-out prompts" in table().results(tmp_path)


@pytest.mark.parametrize("page", ["no marks", "<!-- results:end -->\n<!-- results:begin -->"])
def test_markers_that_do_not_fit_are_told(page: str) -> None:
    with pytest.raises(SystemExit, match="write one line"):
        table().between_markers(page)


# --- what pages name ------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """GitHub's anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        assert str(file.resolve().relative_to(ROOT)) in tracked(), f"{page}: {target} is no file of the repository"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs/images").iterdir():
        assert picture.stat().st_size < 300_000, picture
        assert f"images/{picture.name}" in "".join(TEXTS.values()), f"{picture} is shown nowhere"


def paths(text: str) -> Iterator[str]:
    """Spans, and words of commands, that are the path of something in the repository."""
    tops = {path.name for path in ROOT.iterdir()} - {"results"}
    words = [*spans(text), *(word for command in commands(text) for word in command[1:])]
    for word in words:
        if PLACEHOLDERS.search(word) or not re.fullmatch(r"[\w.*/-]+", word) or word.startswith("./"):
            continue
        if ("/" in word and word.split("/")[0] in tops) or re.fullmatch(rf"[\w-]+\.{SUFFIXES}", word):
            yield word.rstrip("/")


@pytest.mark.parametrize("page", TEXTS)
def test_paths_exist(page: str) -> None:
    there, here = tracked(), (ROOT / page).parent.relative_to(ROOT)
    for path in paths(TEXTS[page]):
        written = "/" not in path and f'"{path}"' in source()  # by a stage
        if "*" in path:
            assert list(ROOT.glob(path)), f"{page}: {path}"
        else:
            assert written or {path, str(here / path)} & there, f"{page}: {path} is not in the repository"


@pytest.mark.parametrize("page", TEXTS)
def test_places_below_results_are_made_by_a_rule(page: str) -> None:
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    made = set(re.findall(r'RESULTS / "([\w.]+)"', rules))
    for place in re.findall(r"results/<experiment>/([\w.]+)", TEXTS[page]):
        assert place in made, f"{page}: results/<experiment>/{place}"


@functools.cache
def options(*names: str) -> set[str]:
    """The flags of posttrain's subcommands."""
    parser = _parser()
    (commands_of,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    assert names[0] in commands_of.choices, f"posttrain has no command {names[0]}"
    return set(commands_of.choices[names[0]]._option_string_actions)


def check_command(words: list[str]) -> None:
    program, rest = words[0], words[1:]
    if program == "make":
        targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for word in rest:
            name, is_variable, _ = word.partition("=")
            assert f"{name} ?=" in (ROOT / "Makefile").read_text() if is_variable else word in targets, word
    elif program == "snakemake":
        known = set(get_argument_parser()._option_string_actions)
        for word in rest:
            assert not word.startswith("-") or word.partition("=")[0] in known, word
    elif program == "dvc":
        get_main_parser().parse_args(rest)
    elif rest[:2] == ["-m", "posttrain"]:
        check_command(rest[1:])
    elif program == "posttrain" and re.fullmatch(r"[a-z-]+", rest[0]):
        flags = {word.partition("=")[0] for word in rest[1:] if word.startswith("-")}
        if rest[0] in ("ui", "compare"):  # they read their own arguments
            text = (ROOT / "posttrain/tracking/ui.py").read_text() if rest[0] == "ui" else compare_source()
            assert all(f'"{flag}"' in text for flag in flags), f"{words}"
        else:
            assert flags <= options(rest[0]), f"{words}"
    elif rest and rest[0].endswith(".py") and "FILE" not in rest[0]:
        text = (ROOT / rest[0]).read_text(encoding="utf-8")
        assert all(f'"{word}"' in text for word in rest[1:] if word.startswith("-")), f"{words}"


def compare_source() -> str:
    return (ROOT / "posttrain/evaluation/compare_command.py").read_text()


@pytest.mark.parametrize("page", TEXTS)
def test_commands_and_their_flags_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(TEXTS[page]):
        try:
            check_command(words)
        except (AssertionError, DvcParserError, OSError) as error:
            pytest.fail(f"{page}: {shlex.join(words)}: {error} {capsys.readouterr().err}")


@pytest.mark.parametrize("page", TEXTS)
def test_names_occur_in_the_code(page: str) -> None:
    """Stages, keys, metrics, columns, variables: a word between backticks that looks like a name is one of ours."""
    for span in spans(TEXTS[page]):
        name = re.fullmatch(r"[A-Za-z]\w*_\w+|[a-z]+/[a-z_0-9]+", span)
        if name and not PLACEHOLDERS.search(span) and not span.startswith("PIP_"):  # pip's own variables
            assert re.search(rf"(?<!\w){re.escape(span)}(?!\w)", source()), f"{page}: `{span}`"


# --- keys of the configuration --------------------------------------------------------------------------------------


def model(reference: dict[str, Any]) -> dict[str, Any]:
    """A property's own model, behind `$ref` and `anyOf`; nothing for a plain value."""
    candidates = [reference, *reference.get("anyOf", []), reference.get("items", {})]
    names = [each["$ref"].rpartition("/")[2] for each in candidates if "$ref" in each]
    return SCHEMA["$defs"][names[0]] if names else {}


def keys(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> its property, of a model and the models below it that are no lists."""
    found = {}
    for name, value in section["properties"].items():
        inner = model(value)
        if inner and "items" not in value:
            found.update(keys(inner, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


(_RUN,) = SCHEMA["properties"]["runs"]["patternProperties"].values()
METHODS = {
    name: SCHEMA["$defs"][reference.rpartition("/")[2]] for name, reference in _RUN["discriminator"]["mapping"].items()
}
SECTIONS = {name: model(value) for name, value in SCHEMA["properties"].items() if model(value)}
TOP = {name: value for name, value in SCHEMA["properties"].items() if name not in {*SECTIONS, "runs"}}
MODELS = {**SECTIONS, **METHODS, "data.sources": model(SECTIONS["data"]["properties"]["sources"])}


def documented() -> dict[tuple[str, str], set[str]]:
    """(model, key) -> the defaults that docs/config.md gives it, as JSON, `required` or `none`."""
    found: dict[tuple[str, str], set[str]] = {}
    for title, body in re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", TEXTS["docs/config.md"], re.MULTILINE | re.DOTALL):
        names = [name for each in spans(title) for name in (METHODS if each == "runs" else [each])]
        if not names and title != "The experiment":
            continue
        for key, cell in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", body, re.MULTILINE):
            values = set(spans(cell)) or {cell}
            for name in names or [""]:
                found.setdefault((name, key), set()).update(values)
    return found


def schema_default(section: dict[str, Any], key: str) -> str:
    value = keys(section)[key]
    if "default" in value:
        return "none" if value["default"] is None else json.dumps(value["default"])
    return "required" if key in section.get("required", []) else "{}"  # an empty mapping of each model's own


def test_config_page_has_every_key_and_no_other() -> None:
    wanted = {("", name) for name in TOP}
    wanted |= {(name, key) for name, section in MODELS.items() for key in keys(section)}
    assert documented().keys() == wanted


def test_config_page_has_the_defaults() -> None:
    """Where a row covers several models its cell has each default that one of them has, and no other."""
    found = documented()
    rows: dict[str, tuple[set[str], set[str]]] = {}
    for (name, key), values in found.items():
        section = MODELS.get(name) or {"properties": TOP, "required": SCHEMA["required"]}
        said, true = rows.setdefault(f"{sorted(values)} {key}", (values, set()))
        true.add(schema_default(section, key))
        assert true <= said, f"{name}.{key}: {true}, the page says {said}"
    for row, (said, true) in rows.items():
        assert said == true, f"{row}: the page says {said}, the schema {true}"


@pytest.mark.parametrize("page", TEXTS)
def test_dotted_keys_exist(page: str) -> None:
    known = {key for name, section in MODELS.items() for key in keys(section, f"{name}.")}
    known |= {f"runs.{name}.{key}" for name, section in METHODS.items() for key in keys(section)}
    parts = {part for key in known for part in key.split(".")[:-1]}
    for span in spans(TEXTS[page]):
        key = re.fullmatch(r"(\w+)((?:\.\w+)+)(?:: .*)?", span)
        if key and key[1] in parts and not re.search(rf"\.{SUFFIXES}$", span):
            name = key[1] + key[2]
            assert any(f".{name}." in f".{each}." for each in known), f"{page}: `{span}`"


@pytest.mark.parametrize("page", TEXTS)
def test_settings_in_examples_exist(page: str) -> None:
    """Of `key: value` between backticks, and of YAML blocks."""
    known = {part for section in [*MODELS.values(), SCHEMA] for key in keys(section) for part in key.split(".")}
    known |= {*SECTIONS, *METHODS, "runs"}
    for span in spans(TEXTS[page]):
        setting = re.fullmatch(r"(?:\w+\.)*([a-z_]+): \S.*", span)
        if setting and setting[1] != "wheel":  # a form of model.base
            assert setting[1] in known, f"{page}: `{span}`"
    for block in blocks(TEXTS[page], "yaml"):
        for name in names_of(yaml.safe_load(block)):
            assert name in known, f"{page}: {name} in an example"


def names_of(value: Any) -> Iterator[str]:
    """Keys at every depth, less those of `columns`, which are of the data, and of `options`, which are the user's."""
    if isinstance(value, list):
        for item in value:
            yield from names_of(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in ("columns", "options"):
                yield from names_of(inner)


def test_readme_names_every_section_and_method() -> None:
    for name in (*SECTIONS, *TOP, "runs"):
        assert f"`{name}`" in TEXTS["README.md"], name
    for name in METHODS:
        assert name in TEXTS["README.md"] and f"`{name}`" in TEXTS["docs/config.md"], name
    assert {f"configs/{path.name}" for path in (ROOT / "configs").iterdir()} <= set(spans(TEXTS["README.md"]))

"""The translator: what Docker would do with an instruction is what the Apptainer definition does, or it is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import dockerfile
import pytest

from posttrain.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def translate(text: str, **arguments: str) -> dockerfile.Translation:
    return dockerfile.Translator(arguments).translate(text)


def run_script(translation: dockerfile.Translation, folder: Path) -> str:
    """Run a translated build script in a scratch folder, as the %post section does, and return what it prints."""
    script = "\n".join(translation.script)
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_parse_joins_continued_lines_and_drops_comments() -> None:
    text = "# head\nRUN one; \\\n  # between\n\n  two\nWORKDIR /x\n"
    found = [(one.line, one.keyword, one.text) for one in dockerfile.parse(text)]
    assert found == [(2, "RUN", "one; two"), (6, "WORKDIR", "/x")]


def test_from_takes_the_argument_before_it() -> None:
    text = "ARG BASE=nvidia/cuda:12.1.1-devel-ubuntu22.04\nFROM ${BASE}\n"
    assert translate(text).base == "nvidia/cuda:12.1.1-devel-ubuntu22.04"
    assert translate(text, BASE="debian:12").base == "debian:12"


def test_argument_before_from_is_unknown_below_it_until_declared_again(tmp_path: Path) -> None:
    head = "ARG A=outer\nFROM x\n"
    assert run_script(translate(head + "RUN echo [$A]"), tmp_path) == "[]\n"
    assert run_script(translate(head + "ARG A\nRUN echo [$A]"), tmp_path) == "[outer]\n"
    assert run_script(translate(head + "ARG A=own\nRUN echo [$A]"), tmp_path) == "[own]\n"
    assert run_script(translate(head + "ARG A=own\nRUN echo [$A]", A="given"), tmp_path) == "[given]\n"


def test_env_wins_over_argument_and_reaches_later_runs_only(tmp_path: Path) -> None:
    text = 'FROM x\nARG A=arg\nRUN echo $A\nENV A="env value"\nRUN echo "$A"\n'
    assert run_script(translate(text), tmp_path) == "arg\nenv value\n"


def test_values_of_one_env_see_the_environment_before_it() -> None:
    assert translate("FROM x\nENV a=1\nENV a=2 b=$a c=${none:-word}\n").environment == {"a": "2", "b": "1", "c": "word"}


def test_path_of_the_base_is_kept_for_the_shell(tmp_path: Path) -> None:
    translation = translate("FROM x\nENV PATH=/opt/venv/bin:$PATH\nRUN echo $PATH\n")
    assert run_script(translation, tmp_path).startswith("/opt/venv/bin:/")
    assert 'export PATH="/opt/venv/bin:${PATH}"' in translation.definition("docker", "x")


def test_values_with_quotes_and_spaces_survive_the_shell(tmp_path: Path) -> None:
    translation = translate(
        'FROM x\nENV A=\'say "hi" `now` \\\\ done\'\nARG B="it\'s two"\nRUN printf \'%s|%s\' "$A" "$B"\n'
    )
    assert run_script(translation, tmp_path) == 'say "hi" `now` \\\\ done|it\'s two'


def test_each_run_starts_in_the_working_folder_with_a_shell_of_its_own(tmp_path: Path) -> None:
    text = f"FROM x\nWORKDIR {tmp_path}/a\nRUN cd / && x=1\nRUN pwd; echo [$x]\nWORKDIR b\nRUN pwd\n"
    assert run_script(translate(text), tmp_path) == f"{tmp_path}/a\n[]\n{tmp_path}/a/b\n"


def test_a_failing_run_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_script(translate("FROM x\nRUN false\nRUN echo on\n"), tmp_path)


def test_copy_names_its_source_and_keeps_its_place() -> None:
    translation = translate(
        "FROM x\nRUN one\nARG LOCK=envs/a.lock\nCOPY ${LOCK} /opt/posttrain/requirements.lock\nRUN two\n"
    )
    assert translation.copied == ["envs/a.lock"]
    order = [index for index, line in enumerate(translation.script) if line.startswith(("env", "cp"))]
    assert translation.script[order[1]] == "cp /mnt/context/envs/a.lock /opt/posttrain/requirements.lock"
    assert "one" in translation.script[order[0]] and "two" in translation.script[order[2]]


def test_labels_become_labels() -> None:
    assert "\n%labels\na.b two words\n" in translate("FROM x\nLABEL a.b='two words'\n").definition("docker", "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM x\nUSER nobody\n", "line 2: USER is not understood"),
        ("FROM x\nENTRYPOINT run\n", "line 2: ENTRYPOINT is not understood"),
        ("FROM x\nKNOWN y\n", "line 2: KNOWN is not understood"),
        ("FROM x\nTRANSLATE y\n", "line 2: TRANSLATE is not understood"),
        ("FROM x AS y\n", "line 1: FROM takes one image reference"),
        ("FROM $BASE\n", "line 1: FROM takes one image reference"),
        ("FROM x\nFROM y\n", "line 2: a second FROM"),
        ("RUN early\nFROM x\n", "line 1: RUN stands before FROM"),
        ("ARG A=1\n", "has no FROM"),
        ('FROM x\nRUN ["a"]\n', "line 2: RUN takes a plain shell command"),
        ("FROM x\nRUN --mount=type=cache,target=/a b\n", "line 2: RUN takes a plain shell command"),
        ("FROM x\nRUN cat <<EOF\n", "line 2: RUN takes a plain shell command"),
        ("FROM x\nCOPY --chown=a b c\n", "line 2: write COPY as"),
        ("FROM x\nCOPY a b c\n", "line 2: write COPY as"),
        ("FROM x\nCOPY $UNKNOWN /b\n", "line 2: write COPY as"),
        ("FROM x\nENV A b\n", "line 2: write ENV as NAME=value"),
        ("FROM x\nARG A=1 B=2\n", "line 2: write one ARG per line"),
        ("FROM x\nRUN\n", "line 2: `RUN` stands alone"),
        ("FROM x\nRUN a \\\n", "line 2: the file ends within a continued line"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        translate(text)
    assert said in str(error.value)


def test_an_argument_that_the_dockerfile_does_not_declare_is_refused() -> None:
    with pytest.raises(UserError, match="no ARG LOK"):
        translate("FROM x\nARG LOCK=a\n", LOK="b")


def test_our_dockerfile_serves_every_image() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    for name, entry in json.loads((ROOT / "docker/images.json").read_text()).items():
        arguments = {"BASE_IMAGE": entry["base"], "LOCK": entry["lock"], "PACKAGES": entry["packages"]}
        translation = translate(text, **arguments, IMAGE_NAME=name, IMAGE_ID="abc")
        assert translation.base == entry["base"]
        assert translation.copied == [entry["lock"]] and (ROOT / entry["lock"]).is_file()
        assert translation.labels["posttrain.image.id"] == "abc"


def test_our_dockerfile_defaults_to_the_cuda_image() -> None:
    entry = json.loads((ROOT / "docker/images.json").read_text())["cuda121"]
    translation = translate((ROOT / "docker/Dockerfile").read_text())
    assert (translation.base, translation.copied) == (entry["base"], [entry["lock"]])
    assert f"PACKAGES='{entry['packages']}'" in "\n".join(translation.script)

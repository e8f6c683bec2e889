"""The wheels, the conda recipe and the workflows that build a release agree with the project's metadata."""

import re
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import name_wheel
import pytest

import torchdata

ROOT = Path(__file__).resolve().parents[3]


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
RECIPE = text_of("conda/recipe.yaml")
RELEASE = text_of(".github/workflows/release.yml")


def test_version_license_and_requirements_of_the_conda_recipe_match_the_project() -> None:
    manifest = tomllib.loads(text_of("Cargo.toml"))
    assert re.findall(r'^  version: "(.+)"$', RECIPE, re.M) == [manifest["workspace"]["package"]["version"]]
    assert re.findall(r"^  license: (.+)$", RECIPE, re.M) == [PROJECT["license"]]
    run = RECIPE.partition("\n  run:\n")[2].partition("\n  run_constraints:")[0]
    needed = {line.strip().removeprefix("- ").replace(" ", "") for line in run.splitlines()}
    assert needed == {"python", *PROJECT["dependencies"]}
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"- python {oldest}.*" in RECIPE, "the oldest Python builds the abi3 wheel"


def test_the_conda_recipe_renders() -> None:
    rattler_build = pytest.importorskip("rattler_build", reason="rattler_build reads the conda recipe")
    recipe = rattler_build.Stage0Recipe.from_yaml(RECIPE)
    pins = rattler_build.VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
    [rendered] = recipe.render(pins)
    assert rendered.recipe.package.name == PROJECT["name"]


def test_the_wheel_named_torchdata_contains_no_module_and_requires_exactly_this_version(tmp_path: Path) -> None:
    with zipfile.ZipFile(name_wheel.build(tmp_path)) as wheel:
        files = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist()}
        assert all(".dist-info/" in name for name in wheel.namelist())
    metadata = message_from_string(files["METADATA"])
    own = torchdata.__version__.partition("+rs.")[2]
    assert own
    assert metadata["Name"] == "torchdata"
    assert metadata["Requires-Dist"] == f"torchdata-rs=={own}"
    assert metadata["Version"] == f"{name_wheel.API}+rs.{own}"


@pytest.mark.parametrize(("text", "before"), [(RELEASE, "upload-artifact"), (text_of("Makefile"), "clean:")])
def test_every_release_build_creates_and_tests_the_wheel_named_torchdata(text: str, before: str) -> None:
    built = text.rindex("tools/name_wheel.py dist")
    tried = text.index("dist/torchdata-*.whl", built)
    assert "tools/try_package.py" in text[built:tried]
    assert tried < text.index(before, built)


def test_the_release_workflow_writes_the_repository_into_the_metadata_before_each_build() -> None:
    for job in RELEASE.split("\n  sdist:"):
        build = re.search(r"maturin (build|sdist)", job)
        assert build is not None
        assert job.index("tools/project_urls.py") <= build.start()


def test_workflows_use_actions_by_the_hash_of_a_commit() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    used = [line.strip() for line in "".join(texts).splitlines() if "uses:" in line]
    assert len(used) >= 5
    assert [line for line in used if not re.fullmatch(r"- uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_the_release_workflow_and_make_build_for_the_same_glibc() -> None:
    name = re.search(r"^MANYLINUX := (\w+)$", text_of("Makefile"), re.M)
    assert name is not None
    assert f'--compatibility {name[1]}"' in RELEASE

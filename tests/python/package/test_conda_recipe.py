"""The conda recipe has the same version and dependencies as pyproject.toml, and follows the rules of conda-build."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_version_licence_and_requirements_are_those_of_the_project() -> None:
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    assert re.findall(r'^  version: "(.+)"$', TEXT, re.M) == [manifest["workspace"]["package"]["version"]]
    assert re.findall(r"^  license: (.+)$", TEXT, re.M) == [PROJECT["license"]]
    run = TEXT.partition("\n  run:\n")[2].partition("\n  run_constraints:")[0]
    needed = {line.strip().removeprefix("- ").replace(" ", "") for line in run.splitlines()}
    assert needed == {"python", *PROJECT["dependencies"]}
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"- python {oldest}.*" in TEXT, "an abi3 build is made by the oldest Python"


def test_the_recipe_renders() -> None:
    rattler_build = pytest.importorskip("rattler_build", reason="it reads recipes")
    recipe = rattler_build.Stage0Recipe.from_yaml(TEXT)
    pins = rattler_build.VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]})
    [rendered] = recipe.render(pins)
    assert rendered.recipe.package.name == PROJECT["name"]

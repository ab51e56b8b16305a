"""Write the Dockerfile and the apptainer.def of every image in images.yaml: `python containers/generate.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coevolve.assets import images
from coevolve.errors import UserError
from coevolve.storage import files

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Variables of every image. The Snakefile's jobs run COEVOLVE_PYTHON where it is set. PYTHONNOUSERSITE: HOME is the
#: checkout or the user's home directory.
ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "COEVOLVE_PYTHON": "/opt/venv/bin/python3",
    "COEVOLVE_SERVERS": "/opt/coevolve/servers",
    "LANG": "C.UTF-8",
    "PYTHONNOUSERSITE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
#: The wheel that is installed without its dependencies, which conflict with those of the kit (after `pip check`).
BFCL = "pip install --no-cache-dir --no-deps --require-hashes --requirement /build/envs_setup/bfcl.lock"
#: WebShop's tagger, which a package index does not have.
TAGGER = "--requirement /build/envs_setup/tagger.lock"
#: This package, in an image that serves.
PACKAGE = "pip install --no-cache-dir --no-deps --no-build-isolation /build"
#: Shell commands that run in this order and make one layer.
Step = tuple[str, ...]
MYSQL: Step = (
    "COEVOLVE_CACHE=/opt/coevolve bash /build/envs_setup/mysql.sh",
    "test -x /opt/coevolve/servers/mysql/usr/sbin/mysqld",
)


def main(root: Path = ROOT) -> None:
    """Write all files under `root`."""
    for path, text in generated_files(images.load_recipes(ROOT / images.RECIPES)).items():
        files.write_bytes(root / path, text.encode())


def generated_files(recipes: images.ImageRecipes) -> dict[str, str]:
    """Text of every generated file by its path in the repository.

    The Dockerfile is for docker, podman and buildah, in the subset that all of them read.
    """
    # Apptainer's build arguments are written {{ NAME }}, so the templates have other delimiters.
    environment = Environment(
        loader=FileSystemLoader(ROOT / "containers"), undefined=StrictUndefined, autoescape=False,
        variable_start_string="<<", variable_end_string=">>", block_start_string="<%", block_end_string="%>",
        trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["build_arguments"] = lambda text: re.sub(r"\$\{(\w+)\}", r"{{ \1 }}", text)
    return {
        f"containers/{name}/{file}": environment.get_template(f"{file}.jinja").render(_variables(recipes, name))
        for name in recipes.images
        for file in ("Dockerfile", "apptainer.def")
    }


def _variables(recipes: images.ImageRecipes, name: str) -> dict[str, object]:
    """The variables of the templates. Build arguments are written ${NAME}."""
    lock_file = str(images.packages_lock(name, ROOT))
    locked = dict(line.split("==") for line in (ROOT / lock_file).read_text(encoding="utf-8").split())
    packages = _packages(recipes, name, lock_file, list(locked))
    *steps, test_step = _steps(recipes, name, lock_file, packages)
    serves = recipes.images[name].serves
    return {
        "base": recipes.base,
        # TORCH may be a variant of the locked version, such as 2.13.0+cpu.
        "arguments": {"COMMIT": "unknown", **({"TORCH": locked["torch"]} if "torch" in packages else {})},
        "labels": {
            "org.opencontainers.image.title": f"{PYPROJECT['name']}-{name}",
            "org.opencontainers.image.description": recipes.images[name].about,
            "org.opencontainers.image.version": PYPROJECT["version"],
            "org.opencontainers.image.revision": "${COMMIT}",
            "org.opencontainers.image.licenses": PYPROJECT["license"],
            "org.opencontainers.image.base.name": "${BASE_IMAGE}",
            "coevolve.packages": " ".join(f"{package}=={locked[package]}" for package in packages),
        },
        "environment": ENVIRONMENT,
        "lock_file": lock_file,
        "steps": steps,
        "test_step": test_step,
        # In the user's home folder, where the environments prepare their files.
        "server": f"cd && exec python3 -m {serves} --host 0.0.0.0" if serves else "",
    }


def _steps(recipes: images.ImageRecipes, name: str, lock_file: str, packages: list[str]) -> list[Step]:
    """The commands that make the image, run as root. The last step runs the tests and removes the checkout."""
    recipe = recipes.images[name]
    pip = f"pip install --no-cache-dir --no-build-isolation --constraint /build/{lock_file}"
    apt = f"apt-get install --yes --no-install-recommends {' '.join([*recipes.debian, *recipe.debian])}"
    steps: list[Step] = [
        ("useradd --create-home --user-group coevolve",),
        ("apt-get update", apt, "rm -rf /var/lib/apt/lists/*"),
        ("python3 -m venv /opt/venv", f"{pip} setuptools"),  # first: source distributions are built with it
    ]
    if "torch" in packages:
        steps.append((f'{pip} "torch==${{TORCH}}"',))
    steps.append((f"{pip} {' '.join(package for package in packages if package != 'torch')}", "pip check"))
    if "bfcl" in recipe.extras:
        steps.append((BFCL,))
    if "webshop" in recipe.extras:
        steps.append((f"{pip} {TAGGER}",))
    if recipe.mysql:
        steps.append(MYSQL)
    # As the user that a container runs as.
    pytest = f"python3 -m pytest -q -p no:cacheprovider -m 'not slow' {' '.join(recipe.tests)}"
    test = f"runuser -u coevolve -- env HOME=/home/coevolve {pytest}"
    install = (PACKAGE,) if recipe.serves else ()
    return [*steps, ("chown -R coevolve /build", "cd /build", test, "cd /", *install, "rm -rf /build")]


def _packages(recipes: images.ImageRecipes, name: str, lock_file: str, locked: list[str]) -> list[str]:
    """Names of the packages that an image installs directly, spelled as in its lock file."""
    spelling = {canonicalize_name(package): package for package in locked}
    packages = {Requirement(text).name for text in PYPROJECT["dependencies"]} | set(recipes.tools)
    packages.update(*(_packages_of_extra(extra) for extra in recipes.images[name].extras))
    for package in packages:
        if canonicalize_name(package) not in spelling:
            raise UserError(f"{lock_file}: `{package}` is missing, but images.yaml installs it; add it.")
    return sorted({spelling[canonicalize_name(package)] for package in packages}, key=str.lower)


def _packages_of_extra(name: str) -> set[str]:
    """Names of an extra's packages; an extra may include further extras of the project itself."""
    packages: set[str] = set()
    for requirement in map(Requirement, PYPROJECT["optional-dependencies"][name]):
        packages |= set().union(*map(_packages_of_extra, requirement.extras)) or {requirement.name}
    return packages


if __name__ == "__main__":
    main()

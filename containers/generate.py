"""Write the Dockerfile and the apptainer.def of every image in images.yaml: `python containers/generate.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from coevolve.assets import images
from coevolve.errors import UserError

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Variables of every image. The Snakefile's jobs run COEVOLVE_PYTHON where it is set. PYTHONNOUSERSITE: HOME is the
#: checkout or somebody's own.
ENVIRONMENT = {
    "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "COEVOLVE_PYTHON": "/opt/venv/bin/python3",
    "COEVOLVE_SERVERS": "/opt/coevolve/servers",
    "LANG": "C.UTF-8",
    "PYTHONNOUSERSITE": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
#: Shell commands that follow each other and make one layer.
Step = tuple[str, ...]
MYSQL: Step = (
    "COEVOLVE_CACHE=/opt/coevolve bash /build/envs_setup/mysql.sh",
    "test -x /opt/coevolve/servers/mysql/usr/sbin/mysqld",
    "rm -rf /opt/coevolve/servers/mariadb",
)
HEADER = "# Made by `python containers/generate.py` from containers/images.yaml: edit that."


def main() -> None:
    """Write all files."""
    for path, text in files(images.source(ROOT / images.SOURCE)).items():
        files.write_bytes(ROOT / path, text.encode())


def files(source: images.Source) -> dict[str, str]:
    """Text of every generated file by its path in the repository."""
    found: dict[str, str] = {}
    for name in source.images:
        found[f"containers/{name}/Dockerfile"] = dockerfile(source, name)
        found[f"containers/{name}/apptainer.def"] = definition(source, name)
    return found


def dockerfile(source: images.Source, name: str) -> str:
    """The image for docker, podman and buildah, in the subset that all of them read."""
    *prepare, test = (" && ".join(step) for step in steps(source, name))
    lines = [HEADER, f"ARG BASE_IMAGE={source.base}", "FROM ${BASE_IMAGE}", "ARG BASE_IMAGE"]
    lines += [f"ARG {key}={value}" for key, value in arguments(source, name).items()]
    lines += [f'LABEL {key}="{value}"' for key, value in labels(source, name, "${COMMIT}", "${BASE_IMAGE}").items()]
    lines += [f"ENV {key}={value}" for key, value in ENVIRONMENT.items()]
    lines += [f"COPY {file} /build/{file}" for file in (lock_file(name), "envs_setup")]
    lines += [f"RUN {step}" for step in prepare]
    lines += ["COPY . /build", f"RUN {test}", "USER coevolve", 'CMD ["python3"]']
    return "\n".join(lines) + "\n"


def definition(source: images.Source, name: str) -> str:
    """The image for Apptainer: the same steps."""
    chosen = {"BOOTSTRAP": "docker", "BASE_IMAGE": source.base, **arguments(source, name)}
    exported = [f"export {key}={value}" for key, value in ENVIRONMENT.items()]
    commands = [re.sub(r"\$\{(\w+)\}", r"{{ \1 }}", command) for step in steps(source, name) for command in step]
    sections = {
        "arguments": [f"{key}={value}" for key, value in chosen.items()],
        "files": [". /build"],
        "labels": [f"{key} {value}" for key, value in labels(source, name, "{{ COMMIT }}", "{{ BASE_IMAGE }}").items()],
        "environment": exported,
        "post": ["set -eu", *exported, *commands],
    }
    lines = [HEADER, "Bootstrap: {{ BOOTSTRAP }}", "From: {{ BASE_IMAGE }}"]
    for section, content in sections.items():
        lines += ["", f"%{section}", *(f"    {line}" for line in content)]
    return "\n".join(lines) + "\n"


def arguments(source: images.Source, name: str) -> dict[str, str]:
    """Build arguments and their defaults. TORCH may name a variant of the locked version, such as 2.13.0+cpu."""
    torch = {"TORCH": lock(name)["torch"]} if "torch" in packages(source, name) else {}
    return {"COMMIT": "unknown", **torch}


def labels(source: images.Source, name: str, commit: str, base: str) -> dict[str, str]:
    """What the image says of itself."""
    locked = lock(name)
    pins = " ".join(f"{package}=={locked[package]}" for package in packages(source, name))
    return {
        "org.opencontainers.image.title": f"{PYPROJECT['name']}-{name}",
        "org.opencontainers.image.description": source.images[name].about,
        "org.opencontainers.image.version": PYPROJECT["version"],
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.licenses": PYPROJECT["license"],
        "org.opencontainers.image.base.name": base,
        "coevolve.packages": pins,
    }


def steps(source: images.Source, name: str) -> list[Step]:
    """What makes the image, run as root: the last step tests it and clears up."""
    recipe = source.images[name]
    found = packages(source, name)
    pip = f"pip install --no-cache-dir --no-build-isolation --constraint /build/{lock_file(name)}"
    debian = " ".join([*source.debian, *recipe.debian])
    install = f"apt-get install --yes --no-install-recommends {debian}"
    # setuptools first: what comes as source is built with it.
    made: list[Step] = [("useradd --create-home --user-group coevolve",)]
    made += [("apt-get update", install, "rm -rf /var/lib/apt/lists/*")]
    made += [("python3 -m venv /opt/venv", f"{pip} setuptools")]
    if "torch" in found:
        made.append((f'{pip} "torch==${{TORCH}}"',))
    made.append((f"{pip} {' '.join(package for package in found if package != 'torch')}", "pip check"))
    return [*made, *([MYSQL] if recipe.mysql else []), _test(recipe.tests)]


def _test(paths: list[str]) -> Step:
    """The project's own tests, as the user a container runs as; nothing of them stays."""
    pytest = f"python3 -m pytest -q -p no:cacheprovider -m 'not slow' {' '.join(paths)}"
    as_user = f"runuser -u coevolve -- env HOME=/home/coevolve {pytest}"
    return ("chown -R coevolve /build", "cd /build", as_user, "cd /", "rm -rf /build")


def packages(source: images.Source, name: str) -> list[str]:
    """Names of the packages an image asks for, as the lock spells them; what they need comes with them, locked too."""
    asked = [Requirement(text).name for text in PYPROJECT["dependencies"]]
    for extra in source.images[name].extras:
        asked += _extra(extra)
    return sorted((_spelled(package, name) for package in {*asked, *source.tools}), key=str.lower)


def lock_file(name: str) -> str:
    """Path of the lock that an image goes by: one of its own, where its packages cannot stand beside the others."""
    own = f"containers/{name}/requirements.lock"
    return own if (ROOT / own).exists() else "requirements.lock"


def lock(name: str) -> dict[str, str]:
    """Versions by package in an image's lock."""
    return dict(line.split("==") for line in (ROOT / lock_file(name)).read_text(encoding="utf-8").split())


def _extra(name: str) -> list[str]:
    found: list[str] = []
    for text in PYPROJECT["optional-dependencies"][name]:
        requirement = Requirement(text)
        inner = [package for extra in sorted(requirement.extras) for package in _extra(extra)]
        found += inner or [requirement.name]
    return found


def _spelled(package: str, image: str) -> str:
    for locked in lock(image):
        if _plain(locked) == _plain(package):
            return locked
    raise UserError(f"{lock_file(image)}: `{package}` is not in it, but images.yaml asks for it; add it.")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()

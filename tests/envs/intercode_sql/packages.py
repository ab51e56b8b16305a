"""Debian packages as `envs_setup/mysql.sh` unpacks them."""

import subprocess

CONTROL = "Package: some-server\nVersion: 1.2-3\nArchitecture: all\nMaintainer: nobody <n@n>\nDescription: x\n"


def package(folder, *programs, text="#!/bin/sh\n"):
    """A package in the new `folder` that holds `programs`, each with this text."""
    for name in ("DEBIAN/control", *programs):
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (folder / "tree/DEBIAN/control").write_text(CONTROL)
    subprocess.run(["dpkg-deb", "--build", folder / "tree", folder / "x.deb"], check=True, capture_output=True)
    return folder / "x.deb"

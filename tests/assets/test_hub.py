"""Models of the hub: pinned, whole or absent, checked byte for byte, against a real server with faults."""

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from assets.hubserver import LISTING, REPO, REVISION, TREE, change, cut, refusal, refuse, serving, stall
from huggingface_hub import constants
from templates.models import llama, tokenizer

from coevolve.assets import hub
from coevolve.assets.downloads import ATTEMPTS
from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.policies import loading
from coevolve.storage import files, policy_dir

WEIGHTS = "model.safetensors"
MIRRORED = f"models/owner--tiny/{REVISION}"
#: Files of a snapshot's folder that the hub does not have.
OWN = (hub.MANIFEST, "provenance.json")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model as it lies on the hub, with files that no policy needs."""
    folder = tmp_path_factory.mktemp("tiny")
    llama().save_pretrained(folder)
    tokenizer("tiny").save_pretrained(folder)
    for name in ("LICENSE.txt", "README.md", "pytorch_model.bin"):
        (folder / name).write_text(f"the {name}")
    return folder


@pytest.fixture
def server(tiny, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    for name in ("HF_TOKEN", "COEVOLVE_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    with serving(tiny) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def fetch(tmp_path, mirror=None, repo=REPO, revision=REVISION):
    out, work = tmp_path / "out", tmp_path / "work"
    for folder in (out, work):
        folder.mkdir(exist_ok=True)
    return hub.fetch(repo, revision, out, work, mirror, stall_seconds=0.5, pause_seconds=0.01)


def refused(tmp_path, *needles, **options):
    refusal(lambda: fetch(tmp_path, **options), tmp_path / "out", "models/owner--", *needles)


def test_a_snapshot_is_a_policy_with_a_manifest_and_no_second_weights(server, tiny, tmp_path):
    manifest, out = fetch(tmp_path), tmp_path / "out"
    names = {path.name for path in out.iterdir()}
    saved = {path.name for path in tiny.iterdir()}
    assert names == saved - {"pytorch_model.bin", "README.md"} | {hub.MANIFEST}
    assert manifest == hub.Manifest(
        hub=REPO,
        revision=REVISION,
        files=[
            hub.ModelFile(name=name, bytes=(tiny / name).stat().st_size, sha256=files.sha256(tiny / name))
            for name in sorted(names - {hub.MANIFEST})
        ],
    )
    assert hub.verify(out / hub.MANIFEST) == manifest
    assert loading.load_model(out).config.hidden_size == 64


@pytest.mark.parametrize(
    "fault",
    [cut, stall, change, refuse(429, Retry_After="0"), refuse(503)],
    ids=["cut", "stalled", "changed", "too many requests", "unavailable"],
)
@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_what_may_pass_is_tried_again(server, tiny, tmp_path, name, fault):
    server.faults[name] = [fault]
    fetch(tmp_path)
    assert (tmp_path / "out" / name).read_bytes() == (tiny / name).read_bytes()
    assert server.requests.count(("GET", name)) == 2


def test_a_cut_download_goes_on_where_it_ended_and_the_other_files_are_kept(server, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    server.faults[WEIGHTS] = [cut]
    fetch(tmp_path)
    assert [first > 1000 for first in server.starts if first] == [True]
    assert server.requests.count(("GET", "config.json")) == 1


@pytest.mark.parametrize("fault", [refuse(500), stall], ids=["broken", "stalled"])
def test_a_listing_that_does_not_come_is_given_up(server, tmp_path, fault):
    server.faults[LISTING] = [fault] * ATTEMPTS
    refused(tmp_path, f"{ATTEMPTS} times")
    assert [name for _, name in server.requests] == [LISTING] * ATTEMPTS


def test_bytes_that_stay_wrong_are_given_up_and_the_other_files_kept(server, tmp_path):
    server.faults[WEIGHTS] = [change] * ATTEMPTS
    refused(tmp_path, WEIGHTS, "on the hub", f"{ATTEMPTS} times")
    assert not (tmp_path / "work" / WEIGHTS).exists()
    fetch(tmp_path)
    for name in ("config.json", "tokenizer.json"):
        assert server.requests.count(("GET", name)) == 1


@pytest.mark.parametrize("gated", [{"X_Error_Code": "GatedRepo"}, {}], ids=["gated", "not gated"])
@pytest.mark.parametrize(("status", "text"), [(401, "401 Unauthorized"), (403, "403 Forbidden")])
@pytest.mark.parametrize("where", [LISTING, TREE, "config.json", "HEAD config.json"])
def test_a_gate_says_where_to_accept_the_licence(server, tmp_path, where, status, text, gated):
    server.faults[where] = [refuse(status, **gated)]
    refused(tmp_path, text, f"accept the licence at {server.url}/{REPO}", "HF_TOKEN", "correct `hub`")


def test_an_unknown_model_or_commit_is_named(server, tmp_path):
    refused(tmp_path, "owner/other", "404 Not Found", "correct `hub`", repo="owner/other")
    refused(tmp_path, "404 Not Found", "correct `revision`", revision="f" * 40)


@pytest.mark.parametrize(("listens", "words"), [(True, "timed out"), (False, "refused")])
def test_no_network_is_one_sentence(tmp_path, monkeypatch, listens, words):
    """Also a server that accepts connections and never answers, as an overloaded proxy does."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{other.getsockname()[1]}")
        refused(tmp_path, "the connection failed", words, f"{ATTEMPTS} times")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(tmp_path, "HF_HUB_OFFLINE is set")


def test_a_failed_transfer_from_xet_is_one_sentence(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet"))
    page = f"{server.url}/api/models/{REPO}/revision/{REVISION}"
    access = {"X-Xet-Cas-Url": server.url, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(2**32)}
    metadata = {"X-Xet-Hash": "1" * 64, "X-Xet-Refresh-Route": page}
    server.faults[LISTING] = [lambda handler, content: handler.answer(200, content, access)] * 99
    server.faults[f"HEAD {WEIGHTS}"] = [lambda handler, content: handler.start(200, len(content), metadata)] * 99
    refused(tmp_path, "the connection failed", "404 Not Found", f"{ATTEMPTS} times")
    assert not (tmp_path / "work" / WEIGHTS).exists()


def test_only_hf_token_is_sent_and_it_is_never_said(server, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("hf_left_by_a_login")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    fetch(tmp_path)
    assert server.tokens == {None}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.faults[LISTING] = [refuse(403)]
    with pytest.raises(UserError) as caught:
        fetch(tmp_path)
    assert server.tokens == {None, "Bearer hf_secret"}
    assert "hf_secret" not in str(caught.value)


def test_a_mirror_comes_before_the_hub(server, tiny, tmp_path):
    folder = filled(tmp_path, tiny)
    manifest = fetch(tmp_path, tmp_path / "mirror")
    assert server.requests == []
    assert (tmp_path / "out" / WEIGHTS).samefile(folder / WEIGHTS)
    assert "pytorch_model.bin" not in {file.name for file in manifest.files}


def test_a_copy_of_data_mirror_is_a_mirror(server, tmp_path):
    """There a model lies under its name in the suite, with the manifest of the stage `snapshot`."""
    first, copy = fetch(tmp_path), tmp_path / "copy/models/llama"
    copy.parent.mkdir(parents=True)
    (tmp_path / "out").rename(copy)
    server.requests.clear()
    assert fetch(tmp_path, tmp_path / "copy") == first
    assert server.requests == []
    with pytest.raises(UserError, match="no such commit"):
        fetch(tmp_path, tmp_path / "copy", revision="f" * 40)
    flip(copy / WEIGHTS)
    with pytest.raises(UserError, match=rf"{WEIGHTS}: sha256 is \w+, but \w+ in manifest.json; fetch the model again"):
        fetch(tmp_path, tmp_path / "copy")


def test_a_manifest_finds_what_is_missing_short_or_changed(server, tmp_path):
    fetch(tmp_path)
    path = tmp_path / "out" / hub.MANIFEST
    flip(path.parent / WEIGHTS)
    hub.verify(path, thorough=False)
    with pytest.raises(UserError, match="sha256"):
        hub.verify(path)
    os.truncate(path.parent / WEIGHTS, 10)
    with pytest.raises(UserError, match=r"model\.safetensors: 10 bytes, but \d+ in manifest\.json"):
        hub.verify(path, thorough=False)
    (path.parent / WEIGHTS).unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: missing"):
        hub.verify(path, thorough=False)
    path.write_text('{"hub": 1}')
    with pytest.raises(UserError, match=r"manifest\.json: key `hub`"):
        hub.verify(path)


@pytest.mark.parametrize("name", ["../Snakefile", "/Snakefile", "sub/config.json", "..", ".", "a\\b", "", "Snakefile"])
def test_a_manifest_names_plain_files_of_a_policy_only(server, tmp_path, name):
    """A mirror's manifest wrote files outside the model's folder."""
    folder = moved(tmp_path)
    (folder.parent / "Snakefile").write_text("evil")
    manifest = json.loads((folder / hub.MANIFEST).read_text())
    manifest["files"].append({"name": name, "bytes": 4, "sha256": hashlib.sha256(b"evil").hexdigest()})
    (folder / hub.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest\.json: key `files\.\d+"):
        fetch(tmp_path, tmp_path / "mirror")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "Snakefile").exists()


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_link_out_of_the_mirror_is_refused(server, tiny, tmp_path, with_manifest):
    folder = moved(tmp_path) if with_manifest else filled(tmp_path, tiny)
    (folder / "LICENSE.txt").rename(tmp_path / "secret")
    (folder / "LICENSE.txt").symlink_to(tmp_path / "secret")
    refused(tmp_path, "LICENSE.txt is a link to a file outside", mirror=tmp_path / "mirror")
    (tmp_path / "secret").rename(folder.parent / "blob")
    (folder / "LICENSE.txt").unlink()
    (folder / "LICENSE.txt").symlink_to("../blob")
    assert fetch(tmp_path, tmp_path / "mirror").files


INDEX_DAMAGED = "model.safetensors.index.json is not an index of weights"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no *.safetensors in it"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors, a shard in"),
        ('{"weight_map": {"a": ["b"]}}', "a shard in"),
        *((content, INDEX_DAMAGED) for content in ("[]", "{", '{"weight_map": 1}', "[" * 100_000)),
    ],
)
def test_a_mirror_without_all_weights_is_refused(server, tiny, tmp_path, content, words):
    folder = filled(tmp_path, tiny)
    if content is None:
        (folder / WEIGHTS).unlink()
    else:
        (folder / "model.safetensors.index.json").write_text(content)
    refused(tmp_path, words, mirror=tmp_path / "mirror")


def filled(tmp_path, tiny):
    """The model in a mirror that someone filled by hand: all files, no manifest."""
    return Path(shutil.copytree(tiny, tmp_path / "mirror" / MIRRORED))


def moved(tmp_path):
    """The model in a mirror, as it was fetched: the files of a policy and their manifest."""
    fetch(tmp_path)
    folder = tmp_path / "mirror" / MIRRORED
    folder.parent.mkdir(parents=True)
    return (tmp_path / "out").rename(folder)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    files.write_bytes(path, bytes(content))


def test_untrained_takes_a_snapshot_by_a_second_name_and_refuses_a_changed_one(
    server, root, tmp_path, coevolve, monkeypatch
):
    monkeypatch.chdir(root)
    settings = ["tiny=null", "pretrain=null", f"hub={REPO}", "parameters=1000.0", f"revision='{REVISION}'"]
    settings = [word for setting in settings for word in ("--set", f"models.tiny.{setting}")]
    command = ["stage", "snapshot", "--suite", "smoke", "--out", tmp_path / "out", "--on", "model=tiny", *settings]
    assert coevolve(*command)[0] == 0
    saved = [path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name not in OWN]
    notes = json.loads((tmp_path / "out/provenance.json").read_text())["notes"]
    assert notes == {"bytes": sum(saved), "files": len(saved)}
    command = [
        "stage", "untrained", "--suite", "smoke", "--out", tmp_path / "policy", "--on", "model=tiny",
        "--on", "env=sciworld", "--on", "branch=base/untrained", f"model={tmp_path / 'out' / hub.MANIFEST}", *settings,
    ]  # fmt: skip
    assert coevolve(*command)[0] == 0
    assert (tmp_path / "policy" / WEIGHTS).samefile(tmp_path / "out" / WEIGHTS)
    ref = policy_dir.describe(tmp_path / "policy")
    assert (ref.base, ref.revision) == (REPO, REVISION)

    shutil.rmtree(tmp_path / "policy")
    flip(tmp_path / "out" / WEIGHTS)
    status, _, error = coevolve(*command)
    assert status == 2
    assert f"coevolve: {tmp_path / 'out' / WEIGHTS}: sha256 is" in error.strip().splitlines()[-1]
    assert not (tmp_path / "policy").exists()


def test_a_model_of_the_hub_needs_its_commit(root):
    settings = ["models.tiny.tiny=null", "models.tiny.pretrain=null", "models.tiny.parameters=1.0"]
    with pytest.raises(UserError, match="40 hex digits"):
        load_suite(
            root / "configs/suites/smoke.yaml", [*settings, f"models.tiny.hub={REPO}", "models.tiny.revision=main"]
        )
    with pytest.raises(UserError, match="give either `hub` and `revision`, or `gguf`, or `path`"):
        load_suite(root / "configs/suites/smoke.yaml", [*settings, f"models.tiny.hub={REPO}", "models.tiny.path=x"])

"""A policy as one checkpoint in transformers' format, for other programs."""

from pathlib import Path

from coevolve.errors import UserError
from coevolve.storage import folders, policy_dir


def write(folder: Path, out: Path) -> None:
    """Write the float32 weights of the policy in `folder`, adapters merged, and its tokenizer to the new folder `out`.

    Raises `UserError` if `out` exists, or if the policy's files are not those that it names.
    """
    from coevolve.policies import loading  # imports torch

    if out.exists():
        raise UserError(f"{out}: exists; name a new folder.")
    ref = policy_dir.describe(folder)
    with folders.directory(out) as written:
        model = loading.load_model(folder, loading.compute_dtype("float32"))
        loading.write_checkpoint(model, folder, written)
        policy_dir.seal(written, ref.name, ref.base, ref.revision)

"""Which files of a folder in transformers' format make a policy, as patterns of their names."""

WEIGHTS = "*.safetensors"
#: What training leaves as it is.
UNTRAINED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
)
#: What decides what a policy says.
DECIDING = (WEIGHTS, "*.safetensors.index.json", "config.json", *UNTRAINED)
#: What is downloaded: also what its licence asks to be kept beside it, and no second set of weights (`*.bin`).
DOWNLOADED = (*DECIDING, "LICENSE*", "NOTICE*", "USE_POLICY*")

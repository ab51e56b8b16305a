"""The stages by name. A new stage is a module in `coevolve.pipeline.stages`, and a line here."""

from coevolve.pipeline.products import PRODUCTS
from coevolve.pipeline.stage import Stage
from coevolve.pipeline.stages import (
    ablation,
    convert,
    data,
    download,
    evaluate,
    explore_tasks,
    gold,
    gradients,
    grpo,
    grpo_round,
    page,
    pairs,
    pool_experts,
    ppo,
    prepare,
    pretrain,
    reference,
    rft_train,
    rollout,
    select,
    sft,
    shard,
    signals,
    snapshot,
    steps,
    task_growth,
    train,
    untrained,
    validate_tasks,
)

_ASSETS = (download, snapshot, convert, gold, prepare, data)
_POLICIES = (untrained, pretrain, sft, rft_train, ppo, grpo, reference, train, gradients)
_EPISODES = (shard, rollout, evaluate, pairs, steps, select)
_POOL = (signals, explore_tasks, validate_tasks, pool_experts, grpo_round)
STAGES: dict[str, Stage] = {
    module.STAGE.name: module.STAGE
    for module in (*_ASSETS, *_POLICIES, *_EPISODES, *_POOL, ablation, task_growth, *PRODUCTS, page)
}
#: The stages of what a full run ends with.
ENDS: list[str] = [module.STAGE.name for module in (*PRODUCTS, page)]
#: The stages whose inputs alone decide their files, without a policy or an environment: `coevolve reverify` makes them
#: again. The costs also have Slurm's accounting.
REMADE = ["pairs", "select", "ablation", *(name for name in ENDS if name != "costs")]

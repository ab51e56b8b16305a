"""The stages of the DAG, each declared once. A new stage is an entry in a module here, and a module in `stages`."""

from coevolve.dag.rules import assets, data, pairs, play, products, task_pool, train
from coevolve.dag.rules.page import PAGE
from coevolve.dag.rules.products import ABLATION
from coevolve.dag.rules.task_pool import TASK_GROWTH

_EXPERIMENT = (*assets.STAGES, *data.STAGES, *train.STAGES, *play.STAGES, *pairs.STAGES, *task_pool.STAGES)
STAGES = {stage.name: stage for stage in (*_EXPERIMENT, ABLATION, TASK_GROWTH, *products.STAGES, PAGE)}

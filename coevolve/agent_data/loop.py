"""The second paper's loop as jobs: a round explores near the signals of the last one, and trains on a pool that grows.

    training episodes -> signals -> exploration -> candidate tasks -> validation -> pool -> training, evaluation

With `learns: task_pool` the target trains with GRPO on the pool; with `pool_preference` both agents explore its tasks,
and learn from pairs as in the first paper.
"""

from dataclasses import replace

from coevolve.agent_data.stages import explore_tasks, grpo_round, pool_experts, signals, validate_tasks
from coevolve.config.derived.methods import for_method
from coevolve.config.derived.recipes import has_pool
from coevolve.pipeline.paper import Iteration, Jobs, Paper
from coevolve.pipeline.stage import PlannedJob, Subject


class BothPapers(Paper):
    """The jobs of a suite, with those of methods that have a pool of tasks."""

    def iterate(self, subject: Subject, before: Iteration) -> Iteration:
        """One iteration, of a method with a pool on the tasks of its pool."""
        if not has_pool(self.suite.recipes[subject.branch.method]):
            return super().iterate(subject, before)
        pool = self.task_pool(subject)
        return replace(super().iterate(subject, before), pool=pool)

    def explored(self, subject: Subject) -> PlannedJob:
        """The job with the tasks that agents explore, and their experts: the environment's, or those of a pool."""
        recipe = self.suite.recipes.get(subject.branch.method)
        if recipe is None or recipe.learns != "pool_preference":
            return super().explored(subject)
        inputs = pool_experts.inputs(self.task_pool(subject), self.prompts(subject), trained=self.suite.prompt.trained)
        return self.about(pool_experts.STAGE, subject, "pool", inputs)

    def train_without_pairs(self, subject: Subject, before: Iteration, rollouts: Jobs) -> PlannedJob:
        """The target's training; that of a round samples episodes on the tasks of the pool."""
        if self.suite.recipes[subject.branch.method].learns != "task_pool":
            return super().train_without_pairs(subject, before, rollouts)
        config, adapted = for_method(self.suite, subject.branch.method).grpo, self.suite.models[subject.model].lora
        start = self.iteration(subject.at(subject.branch.at(0))).policies["target"]
        inputs = self.episodes(subject, before.policies["target"], self.data(subject.env))
        inputs = grpo_round.inputs(inputs, self.task_pool(subject), start if config.beta and not adapted else None)
        return self.about(grpo_round.STAGE, subject, "policy/target", inputs, agent="target")

    def task_pool(self, subject: Subject) -> PlannedJob:
        """The tasks that an iteration trains on; without exploration those of the first iteration."""
        config, branch = for_method(self.suite, subject.branch.method).task_evolution, subject.branch
        branch = branch if config.exploration != "none" else branch.at(1)
        if branch.iteration == 1:
            branch = replace(branch, method=self.suite.recipes[branch.method].first_pool or branch.method)
        return self._pool_of(subject.at(self.owner(branch)))

    def _pool_of(self, subject: Subject) -> PlannedJob:
        """The pool of a round: tasks that the round's exploration leads to, added to the round's before."""
        branch, policies = subject.branch, self.iteration(subject.at(subject.branch.previous)).policies
        config = for_method(self.suite, branch.method).task_evolution
        before = self.task_pool(subject.at(branch.previous)) if branch.iteration > 1 else None
        guiding = None
        if before and config.exploration == "signals":
            rounds = {number: self.iteration(subject.at(branch.at(number))) for number in range(1, branch.iteration)}
            inputs = signals.inputs(before, {number: each.episodes for number, each in rounds.items()})
            guiding = self.about(signals.STAGE, subject, "signals", inputs | self.prepared(subject.env))
        inputs = self.episodes(subject, policies["target"], self.data(subject.env))
        inputs = explore_tasks.inputs(inputs, guiding, explores=config.explorer == "policy")
        explored = self.about(explore_tasks.STAGE, subject, "explored", inputs)
        inputs = {**self.suite.envs[subject.env].play_files, **self.prepared(subject.env)}
        inputs = validate_tasks.inputs(explored, self.data(subject.env), before, inputs)
        return self.about(validate_tasks.STAGE, subject, "tasks", inputs)

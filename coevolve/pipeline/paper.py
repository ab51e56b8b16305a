"""The paper as jobs, in its order (section 4, Figure 1): whoever reads this file reads the algorithm.

    experts -> SFT -> two base policies; then iteration 1, 2, ... of every method:
        both agents explore -> episodes become pairs -> both agents are trained -> the target is evaluated

A result lies at `results/<suite>/<model>/<env>/<branch>/<kind>/...`. A *branch* is a method's iteration for one seed:
`coevolve/seed0/iter2`, or `base/seed0`, `base/untrained`, `base/pretrained` for what all methods share; with
`pretrain.per_seed` also `untrained/seed0` and `pretrained/seed0`.

`coevolve.agent_data.loop` adds the second paper's loop, in which the tasks grow.
"""

from dataclasses import dataclass, field, replace
from itertools import product

from coevolve.config.derived.methods import for_method, iterations_of, models_of
from coevolve.config.derived.recipes import learns_from_pairs, trains
from coevolve.config.derived.sizes import parts
from coevolve.config.derived.training import is_reference_free
from coevolve.config.kinds import has_module
from coevolve.config.machine import Shards
from coevolve.config.suite import Suite
from coevolve.pipeline import work
from coevolve.pipeline.branch import AgentName, Branch
from coevolve.pipeline.stage import MIRROR, Inputs, PlannedJob, Stage, Subject
from coevolve.pipeline.stages import (
    convert,
    data,
    download,
    evaluate,
    gold,
    gradients,
    grpo,
    pairs,
    ppo,
    prepare,
    pretrain,
    reference,
    rft_train,
    rollout,
    select,
    sft,
    shard,
    snapshot,
    steps,
    train,
    untrained,
)

#: Of the models as they are, which all seeds share.
UNTRAINED = Branch("base/untrained", 0, 0)
Jobs = dict[AgentName, PlannedJob]


@dataclass(frozen=True, eq=False)
class Iteration:
    """A method's iteration: by agent the rollouts, pairs and trainings behind it, and the policies after it.

    Iteration 0 has the policies that a method starts from. `branch` is another method's if the iteration is shared.
    """

    branch: Branch
    policies: Jobs
    evaluation: PlannedJob
    rollouts: Jobs = field(default_factory=dict)
    pairs: Jobs = field(default_factory=dict)
    trainings: Jobs = field(default_factory=dict)
    gradients: Jobs = field(default_factory=dict)
    pool: PlannedJob | None = None

    @property
    def episodes(self) -> dict[AgentName, str]:
        """The episodes that an online training, or a round on a pool, trains on, by agent: its own, or the rollouts."""
        return {agent: job["episodes.jsonl"] for agent, job in (self.rollouts or self.trainings).items()}


class Paper:
    """The jobs of a suite, in its folder `home`; `shards`: the jobs that play one rollout, and one evaluation."""

    def __init__(self, suite: Suite, home: str, shards: Shards) -> None:
        self.suite, self.home, self.shards = suite, home, shards
        #: The jobs made so far by key, and by the files that they make.
        self.jobs: dict[str, PlannedJob] = {}
        self.makers: dict[str, PlannedJob] = {}
        self.is_complete = False  # whether these are all that the suite can have
        self._iterations: dict[Subject, Iteration] = {}
        for name, source in suite.sources.items():
            self.add(download.STAGE, name, {}, {"source": name, "file": source.file}, names=(source.file,))
        for model in suite.models:
            self.fetched(model)

    def make(self, methods: list[str]) -> None:
        """Make the jobs of each environment's data, and of every iteration of the methods."""
        for env, section in self.suite.envs.items():
            self.data(env)
            if has_module(section.kind, "gold"):
                self.add(gold.STAGE, f"gold/{env}", {}, {"env": env})
        for method in methods:
            for model, env, seed in product(models_of(self.suite, method), self.suite.envs, self.suite.seeds):
                for number in range(iterations_of(self.suite, env, method) + 1):
                    self.iteration(Subject(model, env, Branch(method, seed, number)))

    def iteration(self, subject: Subject) -> Iteration:
        """An iteration of a method for one seed; it is made once."""
        if subject not in self._iterations:
            self._iterations[subject] = self._made_by(subject)
        return self._iterations[subject]

    def _made_by(self, subject: Subject) -> Iteration:
        """Iteration 0, another method's iteration, or what an own one adds to the iteration before."""
        recipe, branch, owner = self.suite.recipes[subject.branch.method], subject.branch, self.owner(subject.branch)
        shared = self.iteration(subject.at(owner)) if owner != branch else None
        if not branch.iteration:
            policies = {agent: self.start(subject, agent) for agent in recipe.agents}
            return Iteration(
                branch, policies, shared.evaluation if shared else self.evaluate(subject, policies["target"])
            )
        before = self.iteration(subject.at(branch.previous))
        made = shared or self.iterate(subject, before)
        trained = {agent: job for agent, job in made.trainings.items() if trains(recipe, agent)}
        # No iteration explores with the last failure agent.
        used = work.trained_agents(self.suite, subject.env, branch)
        needed = {agent: job for agent, job in trained.items() if agent in used}
        return replace(made, policies=before.policies | trained, trainings=needed)

    def owner(self, branch: Branch) -> Branch:
        """The branch where a branch's results lie: its own, or that of the method whose iteration it shares."""
        recipe = self.suite.recipes[branch.method]
        shares = recipe.shares_first is None or branch.iteration <= recipe.shares_first
        return replace(branch, method=recipe.shares) if recipe.shares and shares else branch

    def iterate(self, subject: Subject, before: Iteration) -> Iteration:
        """One iteration: the agents explore, learn from what they did, and the target is evaluated."""
        recipe, branch = self.suite.recipes[subject.branch.method], subject.branch
        explorers = [agent for agent, each in recipe.agents.items() if each.explores]
        rollouts = {agent: self.rollout(subject, agent, before.policies[agent]) for agent in explorers}
        paired, trained, measured = Jobs(), Jobs(), Jobs()
        if not learns_from_pairs(recipe):
            trained["target"] = self.train_without_pairs(subject, before, rollouts)
        # With `failure_agent_first` the target's pairs have failures of the failure agent after its training.
        for agent in sorted(recipe.agents) if recipe.failure_agent_first else recipe.agents:
            if not recipe.agents[agent].trains_on:
                continue
            read = dict(rollouts)
            if recipe.failure_agent_first and agent == "target":
                read["failure"] = self.rollout(
                    subject.at(branch.at(branch.iteration + 1)), "failure", trained["failure"]
                )
            paired[agent] = self.pair(subject, agent, before, read)
            inputs = train.inputs(
                paired[agent],
                before.policies[agent],
                self._reference(subject, agent, paired[agent], read, before),
                self._steps_like(subject, agent),
            )
            trained[agent] = self.about(train.STAGE, subject, f"policy/{agent}", inputs, agent=agent)
            inputs = gradients.inputs(inputs, trained[agent])
            measured[agent] = self.about(gradients.STAGE, subject, f"gradients/{agent}", inputs, agent=agent)
        paired = {agent: paired[agent] for agent in recipe.agents if agent in paired}
        evaluation = self.evaluate(subject, trained.get("target", before.policies["target"]))
        return Iteration(branch, before.policies | trained, evaluation, rollouts, paired, trained, measured)

    def pair(self, subject: Subject, agent: AgentName, before: Iteration, read: Jobs) -> PlannedJob:
        """An agent's pairs: of trajectories, of failures and experts (eq. 6 and 8), or of steps."""
        folder, excluded = f"pairs/{agent}", self.excluded_example(subject)
        if self.suite.recipes[subject.branch.method].learns != "steps":
            inputs = pairs.inputs(self.explored(subject), read, excluded)
            return self.about(pairs.STAGE, subject, folder, inputs, agent=agent)
        scorer = self.iteration(subject.at(subject.branch.at(0))).policies[agent]
        inputs = self.episodes(subject, before.policies[agent], self.explored(subject))
        inputs = steps.inputs(inputs, self.data(subject.env), agent, read[agent], scorer, excluded)
        return self.about(steps.STAGE, subject, folder, inputs, agent=agent)

    def train_without_pairs(self, subject: Subject, before: Iteration, rollouts: Jobs) -> PlannedJob:
        """The target's training on selected successes (RFT), or on episodes that it samples while it is trained."""
        recipe, start = self.suite.recipes[subject.branch.method], before.policies["target"]
        folder = "policy/target"
        if recipe.learns == "selected":
            all_experts = for_method(self.suite, subject.branch.method).selection.experts == "all"
            inputs = select.inputs(self.data(subject.env), rollouts, self.excluded_example(subject), all_experts)
            selected = self.about(select.STAGE, subject, "selected/target", inputs, agent="target")
            inputs = rft_train.inputs(selected, self.pretrained(subject.model, subject.env, subject.branch.seed))
            return self.about(rft_train.STAGE, subject, folder, inputs, agent="target")
        inputs = self.episodes(subject, start, self.explored(subject))
        stage = {"ppo": ppo.STAGE, "grpo": grpo.STAGE}[recipe.learns]
        return self.about(stage, subject, folder, inputs, agent="target")

    # What a method starts from, and what its agents play.

    def start(self, subject: Subject, agent: AgentName) -> PlannedJob:
        """The policy of an agent before the first iteration."""
        recipe, seed = self.suite.recipes[subject.branch.method].agents[agent], subject.branch.seed
        if other := recipe.foreign.get(subject.env):
            last_trained = Branch("coevolve", seed, iterations_of(self.suite, other, "coevolve") - 1)
            return self.iteration(Subject(subject.model, other, last_trained)).policies["failure"]
        if recipe.base == "untrained":
            return self.untrained(subject.model, subject.env)
        inputs = sft.inputs(self.data(subject.env), self.pretrained(subject.model, subject.env, seed))
        base = subject.at(Branch("base", seed, 0))
        return self.about(sft.STAGE, base, f"policy/{recipe.base}", inputs, agent=recipe.base)

    def untrained(self, model: str, env: str, branch: Branch = UNTRAINED) -> PlannedJob:
        """The policy before any training."""
        section = self.suite.models[model]
        inputs = untrained.inputs(section, self.fetched(model), self.data(env) if section.tiny else None)
        return self.about(untrained.STAGE, Subject(model, env, branch), "policy/target", inputs)

    def fetched(self, model: str) -> PlannedJob | None:
        """The job that fetches or dequantises a model for all suites; None for a tiny model, a folder, an endpoint."""
        section = self.suite.models[model]
        if section.hub:
            return self.add(snapshot.STAGE, f"models/{model}", {}, {"model": model})
        if section.gguf:
            return self.add(convert.STAGE, f"converted/{model}", {"gguf": section.gguf.path}, {"model": model})
        return None

    def pretrained(self, model: str, env: str, seed: int) -> PlannedJob:
        """The policy that fine-tuning starts from: a downloaded checkpoint, or the tiny model after pre-training."""
        config = self.suite.models[model].pretrain
        if not config:
            return self.untrained(model, env)
        before, after = UNTRAINED, Branch("base/pretrained", 0, 0)
        if config.per_seed:
            before, after = Branch("untrained", seed, 0), Branch("pretrained", seed, 0)
        inputs = pretrain.inputs(self.data(env), self.untrained(model, env, before))
        return self.about(pretrain.STAGE, Subject(model, env, after), "policy/target", inputs)

    def rollout(self, subject: Subject, agent: AgentName, policy: PlannedJob) -> PlannedJob:
        """An agent's exploration; in the first iteration the methods share that of the base policies.

        An agent that explores otherwise, or starts as another's base, shares none.
        """
        recipe = self.suite.recipes[subject.branch.method]
        once = recipe.agents[agent].explores
        if isinstance(once, str) and (first := subject.at(Branch(once, subject.branch.seed, 1))) != subject:
            return self.rollout(first, agent, self.iteration(first.at(first.branch.previous)).policies[agent])
        its = recipe.agents[agent]
        explored = self.explored(subject)
        differs = {"rollout", "prompt"} & {*recipe.settings, *its.settings} or explored is not self.data(subject.env)
        if subject.branch.iteration == 1 and its.base == agent and subject.env not in its.foreign and not differs:
            subject = subject.at(Branch("base", subject.branch.seed, 0))
        return self._play(rollout.STAGE, subject, f"rollout/{agent}", policy, explored["explore.jsonl"], agent=agent)

    def evaluate(self, subject: Subject, policy: PlannedJob) -> PlannedJob:
        """The evaluation of a target's policy; it lies beside the policy unless the method has settings for it."""
        alone = {"evaluation", "prompt"} & self.suite.recipes[subject.branch.method].settings.keys()
        tasks = self.data(subject.env)["evaluate.jsonl"]
        return self._play(evaluate.STAGE, subject if alone else policy.subject, "eval", policy, tasks)

    def _play(
        self, stage: Stage, subject: Subject, name: str, policy: PlannedJob, tasks: str, **wildcards: str
    ) -> PlannedJob:
        """A job that plays tasks, or joins the parts that other jobs play."""
        inputs = {**self.prompts(subject), "tasks": tasks, "policy": policy["policy.json"]}
        if number := parts(self.shards, stage.name, subject.env):
            of = [f"{part}of{number}" for part in range(1, number + 1)]
            played = [self.about(shard.STAGE, subject, f"parts/{name}/{n}", inputs, whole=name, part=n) for n in of]
            inputs = {"tasks": tasks, "parts": [part["episodes.jsonl"] for part in played]}
        return self.about(stage, subject, name, inputs, **wildcards)

    def prompts(self, subject: Subject) -> Inputs:
        """The files that prompts and environments are made of."""
        example = {"example": self.data(subject.env)["example.json"]} if self.examples(subject.branch) else {}
        files = {**self.suite.envs[subject.env].play_files, **self.prepared(subject.env), **example}
        return {"instruction": self.data(subject.env)["instruction.txt"], **files}

    def episodes(self, subject: Subject, policy: PlannedJob, tasks: PlannedJob) -> Inputs:
        """The inputs of a job in which a policy plays the tasks that agents explore."""
        return {**self.prompts(subject), "tasks": tasks["explore.jsonl"], "policy": policy["policy.json"]}

    # The environment's files and tasks.

    def data(self, env: str) -> PlannedJob:
        """The tasks and experts of an environment."""
        inputs: Inputs = {**self.suite.envs[env].data_files, **self.prepared(env)}
        return self.add(data.STAGE, f"data/{env}", inputs, {"env": env})

    def prepared(self, env: str) -> dict[str, str]:
        """The files that all jobs of an environment share, if it has any."""
        section = self.suite.envs[env]
        if not section.prepared:
            return {}
        return {
            "prepared": self.add(prepare.STAGE, f"prepared/{env}", {**section.data_files}, {"env": env})["meta.json"]
        }

    def examples(self, branch: Branch) -> int:
        """Few-shot examples before the tasks that are played on a branch."""
        suite = for_method(self.suite, branch.method) if branch.method in self.suite.recipes else self.suite
        return suite.prompt.examples

    def excluded_example(self, subject: Subject) -> Inputs:
        """The few-shot example that pairs leave out: episodes begin with it and experts do not."""
        trained = self.suite.prompt.examples and self.suite.prompt.trained
        left_out = self.examples(subject.branch) and not trained
        return {"excluded_example": self.data(subject.env)["example.json"]} if left_out else {}

    def explored(self, subject: Subject) -> PlannedJob:
        """The job with the tasks that agents explore, and their experts."""
        return self.data(subject.env)

    # How a preference training is anchored.

    def _reference(
        self, subject: Subject, agent: AgentName, paired: PlannedJob, read: Jobs, before: Iteration
    ) -> Inputs:
        """The reference policy of a training, or its log-probs; nothing for an objective without one."""
        branch, config = subject.branch, for_method(self.suite, subject.branch.method, agent)
        if is_reference_free(config.dpo.objective):
            return {}
        start = self.iteration(subject.at(branch.at(0))) if config.dpo.reference == "base" else before
        policy = start.policies[agent]
        if not config.dpo.precompute_reference:
            return {"reference": policy["policy.json"]}
        recipe = self.suite.recipes[branch.method]
        if recipe.learns == "steps" or config.pairing.failures:
            # pairs from the middle of a trajectory on, or of few of the trajectories
            of, inputs = "pairs", Inputs(policy=policy["policy.json"], pairs=paired["pairs.jsonl"])
        else:
            experts, excluded = self.explored(subject), self.excluded_example(subject)
            of, inputs = reference.inputs(recipe.agents[agent].trains_on, policy, experts, read)
            base = subject.at(Branch("base", branch.seed, 0))
            used = [policy, *(job for name, job in read.items() if name in inputs)]
            is_of_base = experts is self.data(subject.env) and excluded == self.excluded_example(base)
            is_of_base &= policy.agent == agent and {*of.split("_")} <= inputs.keys()
            if is_of_base and all(job.branch == base.branch for job in used):
                subject = base  # what all methods can share lies with the base policies
            inputs |= excluded
        folder = f"reference/{agent}/{of}"
        return {
            "scores": self.about(reference.STAGE, subject, folder, inputs, agent=agent, of=of)["scores.safetensors"]
        }

    def _steps_like(self, subject: Subject, agent: AgentName) -> list[str]:
        """The pairs of both agents of the method whose number of gradient steps a target is given."""
        other = self.suite.recipes[subject.branch.method].steps_like
        if other is None or agent == "failure":
            return []
        matched = self.iteration(subject.at(replace(subject.branch, method=other)))
        return [job["pairs.jsonl"] for name, job in matched.pairs.items() if name in matched.trainings]

    def about(self, stage: Stage, subject: Subject, name: str, inputs: Inputs, **wildcards: str) -> PlannedJob:
        """The job of a stage with the folder `name` below the subject's."""
        return self.add(stage, f"{subject.folder}/{name}", inputs, subject.wildcards | wildcards, subject.branch)

    def add(
        self,
        stage: Stage,
        result: str,
        inputs: Inputs,
        wildcards: dict[str, str],
        branch: Branch | None = None,
        names: tuple[str, ...] = (),
    ) -> PlannedJob:
        """The job of a stage with the folder `result`; methods that share a result share its job."""
        root = MIRROR if stage.shared else self.home
        job = PlannedJob(stage, root, result, wildcards, inputs, names or stage.files, branch)
        if job.key not in self.jobs:
            self.jobs[job.key] = job
            self.makers |= dict.fromkeys(job.outputs, job)
        return self.jobs[job.key]

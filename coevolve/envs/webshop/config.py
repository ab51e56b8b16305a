"""WebShop's section of a suite."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coevolve.envs.section import EnvSection, ScriptedOrFile, TaskSelection
from coevolve.settings.section import Positive, SourceFile, Strict

#: Protocols whose prompts are not the kit's conversations.
OTHER_PROMPTS = ("verl_agent", "webshop")


class WebShopSelection(TaskSelection):
    """`lists`: ETO's lists of goal numbers, verl-agent's draw, or `parts`: all goals, the first for evaluation.

    With `parts` the first `test` goals are evaluated, as upstream does with its first 500.
    """

    lists: Literal["eto", "parts", "verl_agent"]
    test: Positive | None = None

    @model_validator(mode="after")
    def _parts_have_a_size(self) -> Self:
        if (self.lists == "parts") != (self.test is not None):
            raise ValueError("`test` goes with lists `parts`, and only with them")
        return self


class CatalogueConfig(Strict):
    """The shop's products: `generated` (so many, in invented words) or upstream's files, of which `limit` are used."""

    generated: Positive | None = None
    products: SourceFile | None = None
    attributes: SourceFile | None = None
    instructions: SourceFile | None = None
    limit: Positive | None = None

    @property
    def files(self) -> dict[str, SourceFile]:
        """Upstream's files by name; none for a generated catalogue."""
        sources = {"products": self.products, "attributes": self.attributes, "instructions": self.instructions}
        return {name: file for name, file in sources.items() if file}

    @model_validator(mode="after")
    def _generated_or_all_files(self) -> Self:
        if len(self.files) != (0 if self.generated else 3):
            raise ValueError("give `generated`, or all of `products`, `attributes` and `instructions`")
        return self


class WebShopExperts(ScriptedOrFile):
    """Expert trajectories: `scripted` (searches, reads the pages and buys) or `eto` (ETO's published file)."""

    format: Literal["scripted", "eto"]


class StepPrompt(SourceFile):
    """A user message a step instead of the conversation; the file's Python constants `first` and `later` are templates.

    `later` takes the last `history` observations and actions. A message of more than `longest` characters goes without.
    """

    first: str
    later: str
    history: Positive
    longest: Positive


class WebShopConfig(EnvSection):
    """WebShop, the kit's own implementation: text mode, upstream's goals and rewards.

    `goals`: the human ones, or synthetic ones. Prices of products sold in a range, and price limits, are drawn from
    `seed` once, unless the protocol redraws them in each job. `tagger` finds the nouns of titles for the reward.
    Pages are cut to `observation_length` characters (None: whole, as upstream). `prompt` None: the kit's conversation.
    """

    licence: ClassVar[str] = (
        "WebShop: code and goals are MIT; product texts of upstream's catalogue come from shop pages and have no "
        "stated licence. A generated catalogue is the kit's own, Apache-2.0."
    )
    licence_id: ClassVar[str] = ""
    splits: list[Literal["test", "development"]]
    tasks: WebShopSelection
    experts: WebShopExperts
    catalogue: CatalogueConfig
    goals: Literal["human", "synthetic"]
    seed: int
    tagger: Literal["spacy", "approximate"]
    observation_length: Positive | None
    step_limit: Positive
    prompt: StepPrompt | None = None

    @property
    def prepared(self) -> bool:
        """The shop, its search engine and the list of goals are made once."""
        return True

    @property
    def note(self) -> str:
        """That the shop is an invented one, its tagger an approximate one, or a protocol's prompt another one."""
        other_prompt = self.protocol in OTHER_PROMPTS and not self.prompt
        remarks = ["an invented catalogue"] if self.catalogue.generated else []
        remarks += [f"not the prompts of protocol `{self.protocol}`"] if other_prompt else []
        remarks += [] if self.tagger == "spacy" else [f"noun tagger `{self.tagger}`, not upstream's"]
        return f"WebShop: {', '.join(remarks)}; non-comparable." if remarks else ""

    @property
    def single_message(self) -> bool:
        """Each observation is a whole prompt if `prompt` has templates."""
        return self.prompt is not None

    @staticmethod
    def is_refused(before: str, action: str | None, observation: str) -> bool:
        """Whether the page stayed as it was `before` and the clicked text, if any, does not stand on it."""
        clicked = (action or "").partition("[")[2].rstrip("]").strip().lower()
        return observation == before and (not clicked or clicked not in before.lower())

    @property
    def play_files(self) -> dict[str, str]:
        """The file of the templates."""
        return {"templates": self.prompt.path} if self.prompt else {}

    @property
    def data_files(self) -> dict[str, str]:
        """Files the shop, the task lists and the experts are made from, by name."""
        files = self.catalogue.files | ({"experts": self.experts.file} if self.experts.file else {})
        return {name: file.path for name, file in files.items()}

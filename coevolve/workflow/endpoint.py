"""A job's policy where that is a model behind an endpoint, and what its answers cost."""

from __future__ import annotations

from typing import Any

from coevolve.config.sections import EndpointConfig
from coevolve.policies import openai
from coevolve.policies.openai import EndpointSettings, OpenAIPolicy, Usage
from coevolve.storage import jsonl
from coevolve.workflow.job import Job

_USAGE = "usage.jsonl"


def asked(job: Job, endpoint: EndpointConfig, policy: str) -> OpenAIPolicy:
    """The model that the input called `policy` names; its answers are counted in the job's work folder."""
    openai.check_ref(job.policy(policy), endpoint.model)
    settings = EndpointSettings(
        concurrency=endpoint.concurrency,
        timeout=endpoint.timeout_seconds,
        retries=endpoint.retries,
        seeds=endpoint.seeds,
        length=endpoint.length,
    )
    journal = jsonl.Journal(job.work / _USAGE, Usage)
    return OpenAIPolicy(endpoint.model, settings, context=job.model.context, journal=journal)


def spent(job: Job) -> dict[str, Any]:
    """What the job's answers cost, for its notes; nothing where no endpoint was asked."""
    endpoint, path = job.model.endpoint, job.work / _USAGE
    if endpoint is None or not path.exists():
        return {}
    return {"spent": openai.spending(jsonl.read(path, Usage), endpoint.price_in, endpoint.price_out)}

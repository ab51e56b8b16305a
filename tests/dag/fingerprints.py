"""Prints the fingerprint of every job of some suites, of the code in the current folder, as JSON."""

import json
import sys

from coevolve.config.loading import load_suite
from coevolve.pipeline.plan import Plan

found = {}
for name in sys.argv[1:]:
    plan = Plan(load_suite(name))
    found |= {f"{name} {job.stage.name} {json.dumps(job.wildcards)}": plan.fingerprint(job) for job in plan.jobs()}
json.dump(found, sys.stdout)

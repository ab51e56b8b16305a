from dataclasses import replace
from pathlib import Path

import pytest
from builders import record
from report.explored import measurement

from coevolve.config.loading import load_suite
from coevolve.errors import UserError
from coevolve.pipeline.suite_files import SuiteFiles
from coevolve.report import differences
from coevolve.report.measurement import read
from coevolve.storage import jsonl


def evaluated(split, rewards, seed=0):
    return [record(f"{split}{number}", reward, split=split, seed=seed) for number, reward in enumerate(rewards)]


def measured(method, split, rewards):
    return measurement(method, "sciworld", split, {f"{split}{number}": [r] for number, r in enumerate(rewards)})


@pytest.mark.parametrize("seeds", [[0, 1, 2], [8, 9]])
def test_one_policy_of_all_seeds_is_compared_with_every_seed(root, tmp_path, seeds):
    suite = load_suite(root / "configs/suites/studies/micro.yaml", [f"seeds={seeds}", "methods=[untrained, sft]"])
    files, env = SuiteFiles(suite, root=tmp_path.as_posix()), next(iter(suite.envs))
    every = files.records(suite.methods)
    split = suite.envs[env].splits[0]
    for file in every:
        rewards, own = ([0.1, 0.2], 0) if file.method == "untrained" else ([0.5, 0.5 + file.seed / 20], file.seed)
        records = evaluated(split, rewards, own) if file.env == env else []  # untrained, a policy has no seed
        jsonl.write(Path(file.path), records)
    final = [m for m in read(suite, every) if m.records]
    (found,) = differences.paired(final, suite.report)
    assert found.estimate.seed_means == pytest.approx({seed: 0.35 + seed / 40 for seed in seeds})
    assert found.estimate.n_seeds == len(seeds)


class Counted(tuple):
    """A tuple that counts how often it is read."""

    read = 0

    def __iter__(self):
        self.read += 1
        return super().__iter__()


def test_the_records_of_a_method_are_read_once_however_many_methods_there_are(root):
    report = load_suite(root / "configs/suites/smoke.yaml").report
    final = [measured(f"method{number}", "seen", [0.1 * number, 0.5]) for number in range(6)]
    final = [replace(each, records=Counted(each.records)) for each in final]
    assert len(differences.paired(final, report)) == 15
    assert [each.records.read for each in final] == [1] * 6


def test_rows_without_a_common_task_are_named(root):
    report = load_suite(root / "configs/suites/smoke.yaml").report
    final = [measured("eto", "seen", [0.0]), measured("coevolve", "unseen", [0.25])]
    with pytest.raises(UserError, match=r"`coevolve` minus `eto` on sciworld: .*share no evaluated task"):
        differences.paired(final, report)

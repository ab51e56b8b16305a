"""A file that is no record of InterCode's runs."""

import pytest
from envs.setups import write

from coevolve.envs.intercode_sql.recorded_runs import read
from coevolve.errors import UserError

PETS = {"db": "pets_1", "gold": "SELECT PetType FROM pets", "query": "Which kinds of pet are there?"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "AttributeError"),
        ('{"0": {"task_id": 0}}', "KeyError"),
        ('{"0": {"task_id": 7, "query": "Which?"}}', "IndexError"),
        ('{"0": {"task_id": 0, "query": "Which?"}}', "item 0 has another question"),
        ('{"0": {"task_id": 0, "query": "Which kinds of pet are there?", "turn_history": {"actions": 1}}}', "KeyError"),
    ],
)
def test_a_file_that_is_no_record_is_one_sentence(tmp_path, content, complaint):
    path = write(tmp_path / "run.json", content)
    with pytest.raises(UserError) as error:
        read(path, write(tmp_path / "dev.json", [PETS]))
    assert str(error.value).startswith(f"{path}: ") and complaint in str(error.value)
    assert "\n" not in str(error.value)

"""A second run changes nothing, in check mode neither, and needs no leave to format."""

import pytest
from vm_run import play, recap


@pytest.mark.parametrize("mode", [[], ["--check"]], ids=["real", "check"])
def test_second_run_changes_nothing(mode):
    done = play("prepare", *mode)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert recap(done)["changed"] == 0, done.stdout

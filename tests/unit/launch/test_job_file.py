"""Job files become command lines of launchers, or errors that name the file and the key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from undertow.errors import ConfigError
from undertow.launch.job_file import SharedJob, read_jobs


def write(folder: Path, text: str, name: str = "job.toml") -> Path:
    (folder / "train.py").touch()
    path = folder / name
    path.write_bytes(text.encode("latin-1"))
    return path


def read(folder: Path, text: str) -> SharedJob:
    return read_jobs([write(folder, text)], {})[0]


def read_command(job: SharedJob) -> list[str]:
    assert job.command[:4] == [sys.executable, "-m", "undertow", "run"]
    return job.command[4:]


def test_a_file_with_only_a_script(tmp_path: Path) -> None:
    job = read(tmp_path, 'script = "train.py"')
    assert (job.name, job.folder) == ("job", tmp_path)
    sizes = ["-n", "1", "--nnodes", "1", "--node-rank", "0"]
    assert read_command(job) == ["--share", "--share-name", "job", *sizes, "--", str(tmp_path / "train.py")]


def test_a_file_with_every_key(tmp_path: Path) -> None:
    job = read(
        tmp_path,
        'module = "pkg.train"\nargs = ["--lr", "0.1"]\nn = 2\nnnodes = 3\nnode_rank = 1\nmaster_addr = "10.0.0.1"\n'
        'master_port = 29501\nname = "mine"\nweight = 2\nurgent = true\nenv = {A = "b"}',
    )
    sizes = ["-n", "2", "--nnodes", "3", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29501"]
    wishes = ["--weight", "2.0", "--urgent"]
    command = ["--share", "--share-name", "mine", *sizes, *wishes, "-m", "--", "pkg.train", "--lr", "0.1"]
    assert read_command(job) == command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "script: is missing"),
        ('script = "train.py"\nmodule = "a"', "module: script is given as well"),
        ('script = "no.py"', "script: FOLDER/no.py does not exist"),
        ('script = "."', "script: FOLDER is a folder"),
        ('scirpt = "train.py"', "scirpt: unknown key; known keys: script, module, args,"),
        ("script = 3", "script: expected str, got int"),
        ('module = "a"\nargs = "b"', "args: expected array, got str"),
        ('module = "a"\nargs = ["b", 3]', "args[1]: expected str, got int"),
        ('module = "a"\nargs = ["b\\u0000"]', "args[0]: expected str matching"),
        ('module = "a"\nn = 0', "n: expected int >= 1"),
        ('module = "a"\nn = true', "n: expected int, got bool"),
        ('module = "a"\nnnodes = 2\nnode_rank = 2', "node_rank: 2 is outside of 0 to nnodes - 1, 1"),
        ('module = "a"\nmaster_port = 65536', "master_port: expected int <= 65535"),
        ('module = "a"\nweight = 0', "weight: 0 is not possible"),
        ('module = "a"\nweight = nan', "weight: nan is not possible"),
        ('module = "a"\nweight = inf', "weight: inf is not possible"),
        ('module = "a"\nweight = "2"', "weight: expected float, got str"),
        ('module = "a"\nurgent = 1', "urgent: expected bool, got int"),
        ('module = "a"\nname = "b\\nc"', "name: 'b\\nc' cannot be printed"),
        ('module = "a"\nenv = {B = 1}', "env[...]: expected str, got int"),
        ('module = "a"\nenv = {"B=C" = "1"}', "key in env: expected str matching"),
        ("module =", "not valid TOML: Invalid value"),
        ("\xff", "not valid TOML: it is not text in UTF-8"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'job.toml'}: {words.replace('FOLDER', str(tmp_path))}")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: cannot be read: No such file or directory"):
        read_jobs([tmp_path / "no.toml"], {})


def test_duplicate_names_and_ports_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path, 'module = "a"\nname = "same"', "one.toml")
    two = write(tmp_path, 'module = "a"\nname = "same"', "two.toml")
    with pytest.raises(ConfigError, match=r"two\.toml: name: same is already used by .*one\.toml"):
        read_jobs([one, two], {})
    three = write(tmp_path, 'module = "a"\nnnodes = 2', "three.toml")
    four = write(tmp_path, 'module = "a"\nnnodes = 2\nmaster_port = 29500', "four.toml")
    with pytest.raises(ConfigError, match=r"four\.toml: master_port: 29500 is already used by .*three\.toml"):
        read_jobs([three, four], {})
    assert len(read_jobs([three, four], {"MASTER_PORT": "29501"})) == 2


def test_more_than_eight_jobs_are_refused(tmp_path: Path) -> None:
    files = [write(tmp_path, 'module = "a"', f"{number}.toml") for number in range(9)]
    assert len(read_jobs(files[:8], {})) == 8
    with pytest.raises(ConfigError, match="9 jobs are not possible: at most 8 can share a device"):
        read_jobs(files, {})


def test_the_files_environment_wins_and_all_jobs_share_an_arbiter(tmp_path: Path) -> None:
    job = read(tmp_path, 'module = "a"\nenv = {A = "file", UNDERTOW_SHARE_SOCKET = "/elsewhere"}')
    made = job.make_environment({"A": "user", "B": "user", "PYTHONPATH": "src:/x"}, Path("/s"))
    assert (made["A"], made["B"], made["UNDERTOW_SHARE_SOCKET"]) == ("file", "user", "/s")
    assert made["PYTHONPATH"] == f"{Path('src').absolute()}:/x"

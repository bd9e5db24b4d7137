"""Systems by name: undertow, undertow with mechanisms off, and those of other packages."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from undertow.errors import ConfigError
from undertow.settings import Settings, read_settings
from undertow.tools.lab.systems import System, find_system, list_systems
from undertow.tools.lab.systems.others import FUSION_BYTES
from undertow.tools.lab.systems.system import find_missing
from undertow.tools.lab.systems.undertow import MECHANISMS, UNSLICED_BYTES

PLUG_IN = """
class Other:
    name = "other"
    about = "somebody else's"

    def find_obstacle(self):
        return "it is a stand-in"
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that provides a system."""
    (tmp_path / "others_system.py").write_text(PLUG_IN)
    info = tmp_path / "others_system-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others-system\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[undertow.systems]\nother = others_system:Other\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("others_system", None)


def settings_of(name: str, scale: float) -> Settings:
    return read_settings(find_system(name).variables(scale=scale))


def test_every_listed_name_is_found_under_its_own_name() -> None:
    names = list_systems()
    assert len(set(names)) == len(names)
    for name in names:
        system = find_system(name)
        assert system.name == name
        assert system.about
        assert "\n" not in system.about


def test_the_list_has_ours_and_each_mechanism_turned_off() -> None:
    assert {"ddp", "undertow", "local", "horovod", "undertow-no-slicing", "undertow-no-wait-free"} <= set(
        list_systems()
    )


def test_a_system_is_found_anew_every_time() -> None:
    assert find_system("ddp") is not find_system("ddp")


@pytest.mark.parametrize("name", ["", "gloo", "DDP", "ddp-no-slicing", "local-no-wait-free", "no-slicing"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        find_system(name)
    assert str(error.value) == f"unknown system {name!r}; known: {', '.join(list_systems())}"


@pytest.mark.parametrize(
    "name",
    [
        "undertow-no-",
        "undertow-no-magic",
        "undertow-no-slicing-no-slicing",
        "undertow-no-slicing-no-magic",
        "undertow-no-slicing-wait-free",
        "undertow-slicing",
        "undertow-no-slicing-no-",
        "-no-slicing",
    ],
)
def test_a_mechanism_that_is_repeated_or_unknown_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown system"):
        find_system(name)


@pytest.mark.parametrize("count", [1, 2])
def test_mechanisms_can_be_turned_off_in_any_combination(count: int) -> None:
    for off in itertools.permutations(MECHANISMS, count):
        system = find_system("-no-".join(["undertow", *off]))
        assert system.name == "-no-".join(["undertow", *off])
        assert all(mechanism in system.about for mechanism in off)


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0, 7.3, 0.5])
@pytest.mark.parametrize("name", [name for name in list_systems() if name.startswith("undertow")])
def test_the_variables_of_undertow_are_accepted(name: str, scale: float) -> None:
    settings = settings_of(name, scale)
    assert settings.wait_free is ("wait-free" not in name)
    assert settings.slice_bytes == (UNSLICED_BYTES if "slicing" in name else 0)  # 0: undertow chooses
    assert settings.smallest_slice_bytes == pytest.approx(max(1024, (64 << 10) / scale), abs=16)
    assert settings.largest_slice_bytes == pytest.approx(max(4096, (4 << 20) / scale), abs=16)
    assert settings.priority.value == ("off" if "priority" in name else "push" if "two-way" in name else "both")


def test_both_mechanisms_off_are_both_off() -> None:
    settings = settings_of("undertow-no-slicing-no-wait-free", 10.0)
    assert (settings.slice_bytes, settings.wait_free) == (UNSLICED_BYTES, False)


def test_what_the_user_has_set_does_not_turn_a_mechanism_on_or_off() -> None:
    given = {"UNDERTOW_WAIT_FREE": "off", "UNDERTOW_SLICE": "4096"}
    settings = read_settings({**given, **find_system("undertow").variables(scale=1.0)})
    assert (settings.slice_bytes, settings.wait_free) == (0, True)


def test_horovods_fusion_follows_the_scale() -> None:
    variables = find_system("horovod").variables(scale=100.0)
    assert int(variables["HOROVOD_FUSION_THRESHOLD"]) == round(FUSION_BYTES / 100)
    assert int(find_system("horovod").variables(scale=1e12)["HOROVOD_FUSION_THRESHOLD"]) == 1


def test_what_is_not_installed_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "horovod" else object())
    assert find_system("horovod").find_obstacle() == "horovod is not installed"
    for name in ("ddp", "undertow", "local", "undertow-no-slicing"):
        assert find_system(name).find_obstacle() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("ddp", "undertow", "local", "horovod"):
        assert find_system(name).find_obstacle() == "torch is not installed"


def test_a_package_is_looked_for_and_not_imported() -> None:
    assert find_missing("antigravity") is None
    assert "antigravity" not in sys.modules
    assert find_missing("no_such_package_anywhere") == "no_such_package_anywhere is not installed"


def test_another_packages_system_is_found(plug_in: Path) -> None:
    assert "other" in list_systems()
    system: System = find_system("other")
    assert (system.name, system.about) == ("other", "somebody else's")
    assert system.find_obstacle() == "it is a stand-in"
    with pytest.raises(ConfigError, match=r"known: .*other"):
        find_system("another")


def test_another_package_cannot_take_one_of_our_names(plug_in: Path) -> None:
    entries = plug_in / "others_system-1.0.dist-info" / "entry_points.txt"
    entries.write_text("[undertow.systems]\nddp = others_system:Other\n")
    assert find_system("ddp").about != "somebody else's"


def test_looking_at_systems_does_not_import_torch() -> None:
    code = (
        "import sys; from undertow.tools.lab.systems import *\n"
        "for name in list_systems(): find_system(name).find_obstacle(); find_system(name).variables(scale=10.0)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

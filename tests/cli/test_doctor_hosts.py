"""`undertow doctor --hosts` on emulated hosts: what stands between them is found and named."""

from __future__ import annotations

import subprocess

from tests.support.command import Cli
from tests.support.doctors import finish_all, lines_of, spare_torch, start_doctor, start_doctors
from tests.support.labs import in_lab, needs_lab
from undertow.tools.lab.network import Host, Network

pytestmark = needs_lab

QUICK = ("--seconds", 0.05)
NAMES = "host0,host1,host2"


def run(host: Host, command: str) -> None:
    with host.entered():
        subprocess.run(command.split(), check=True)


def test_three_hosts_find_themselves_and_agree(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        first, *others = start_doctors(cli, network.hosts, "--hosts", NAMES, *QUICK)
        assert [result.returncode for result in (first, *others)] == [0, 0, 0], first.stdout
        found = lines_of(first)
        assert found["interface in use"].startswith("ok eth0 (10.77.0.1, MTU 1500, ")
        assert found["interface in use"].endswith("10.77.0.1 (host0, the first of --hosts) is this host's own")
        assert found["firewall"].startswith("ok ")
        assert found["MTU"] == "ok 1500 on all hosts"
        assert found["clocks"].startswith("ok ")
        assert found["token"].startswith("note UNDERTOW_TOKEN is not set")
        rows = [line.split() for line in first.stdout.splitlines() if line.startswith(" host")]
        assert [row[0] for row in rows] == ["host0", "host1", "host2"] * 2
        assert all(float(cell) > 0 for row in rows for cell in row[1:] if cell != "-")
        verdict = first.stdout.splitlines()[-1]
        assert verdict.startswith("training would work on these 3 hosts")
        for result in others:
            assert result.stdout.splitlines()[-2:] == ["host0 shows the rest", verdict]

    in_lab(3, body)


def test_a_firewall_between_two_that_both_reach_the_first_is_a_failure_of_all(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        run(network.hosts[1], "ip route add prohibit 10.77.0.3/32")
        run(network.hosts[1], "ip link set eth0 mtu 9000")
        results = start_doctors(cli, network.hosts, "--hosts", NAMES, *QUICK)
        assert [result.returncode for result in results] == [1, 1, 1]
        for result in results:
            text = lines_of(result)["firewall"]
            assert text.startswith("failure host2 cannot connect to host1: no answer within ")
            assert "; in the other direction, from host1: the firewall or the routes of the dialling host" in text
            assert lines_of(result)["MTU"].startswith("warning it differs: 1500 on host0 and host2, 9000 on host1")
        latencies = next(line.split() for line in results[0].stdout.splitlines() if line.startswith(" host2 "))
        assert float(latencies[1]) > 0
        assert latencies[2:] == ["?", "-"]

    in_lab(3, body)


def test_a_host_that_does_not_come_is_named_and_the_others_are_measured(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        hosts = "host0,host1,host2,nowhere.invalid"
        first, second = start_doctors(cli, network.hosts[:2], "--hosts", hosts, "--timeout", 3, *QUICK)
        assert (first.returncode, second.returncode) == (1, 1)
        failures = [line.split(maxsplit=2)[2] for line in first.stdout.splitlines() if line.startswith("failure")]
        came = "did not come within 3 s"
        told = {text.partition(" ")[0]: text for text in failures}
        assert set(told) == {"host2", "nowhere.invalid"}
        assert f"host2 {came}: it is up and can be reached, but nothing listens at port 29500" in told["host2"]
        assert f"nowhere.invalid {came}: the name is unknown here" in told["nowhere.invalid"]
        assert lines_of(first)["bandwidth"]
        assert "waiting for host2, nowhere.invalid: start the same command there" in first.stderr
        assert lines_of(second)["hosts"] == "failure nowhere.invalid did not come"

    in_lab(3, body)


def test_without_the_first_host_the_others_say_why_they_cannot_meet(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        _, second, third = network.hosts
        run(third, "ip link set eth0 down")
        cut_off, waiting = finish_all(
            cli,
            start_doctor(cli, third, "--hosts", NAMES, "--node-rank", 2),
            start_doctor(cli, second, "--hosts", NAMES, "--timeout", 1),
        )
        assert (cut_off.returncode, waiting.returncode) == (1, 1)
        assert "there is no route to 10.77.0.1 (host0, the first of --hosts)" in lines_of(cut_off)["interface in use"]
        assert lines_of(waiting)["hosts"].startswith(
            "failure host0 did not come within 1 s: it is up and can be reached"
        )

    in_lab(3, body)


def test_a_wrong_token_is_refused_and_named(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        tokens = ({"UNDERTOW_TOKEN": "right"}, {"UNDERTOW_TOKEN": "wrong"})
        started = [
            start_doctor(cli, host, "--hosts", "host0,host1", "--timeout", 2, variables=token)
            for host, token in reversed(list(zip(network.hosts, tokens, strict=True)))
        ]
        second, first = finish_all(cli, *started)
        assert (first.returncode, second.returncode) == (1, 1)
        assert lines_of(second)["hosts"].startswith("failure host0 refuses this host: wrong token")
        assert "-> set the same UNDERTOW_TOKEN on every host" in second.stdout
        assert "UNDERTOW_TOKEN may differ there" in first.stdout
        assert "right" not in first.stdout + second.stdout

    in_lab(2, body)


def test_a_path_that_drops_jumbo_frames_is_a_failure(cli: Cli) -> None:
    spare_torch(cli)

    def body(network: Network) -> None:
        for host in network.hosts:
            run(host, "ip link set eth0 mtu 9000")
            # Or the kernel would hand over many packets as one, which the switch lets pass.
            run(host, "ip link set eth0 gso_max_segs 1")
        result = start_doctors(cli, network.hosts, "--hosts", "host0,host1", *QUICK)[0]
        assert result.returncode == 1
        text = lines_of(result)["MTU"]
        assert text.startswith("failure small messages pass, but bulk data hangs from host1 to host0, host0 to host1")
        assert "packets of 9000 bytes may be dropped" in text

    in_lab(2, body)

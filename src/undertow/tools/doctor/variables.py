"""Collects and judges the settings: their values, where each value comes from, and what is wrong with it.

In: the environment.  Out: facts without secrets; findings.  Only `collect_variables` reads settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from undertow.errors import ConfigError
from undertow.launch.job import read_job_settings
from undertow.settings import Origin, ResolvedSetting, read_settings, resolve_settings, table
from undertow.tools.doctor.facts import Setting, Variables
from undertow.tools.doctor.findings import Finding, fail, ok, warn
from undertow.units import format_quantity

PREFIX = "UNDERTOW_"
SETTINGS = "settings"  # the subject
_SECRETS = {"token"}
# Every launcher sets these for its workers, whatever their values outside are.
_OF_WORKERS = {"rank", "world_size", "local_rank", "local_world_size"}
# Belong to one host or one worker, are sent to all by the first, or are set by a launcher: these may differ.
_OF_A_HOST = {
    *_OF_WORKERS,
    *("master_addr", "master_port", "rendezvous", "token", "address", "start_timeout_s", "profile", "trace", "live"),
    *("slice_bytes", "smallest_slice_bytes", "largest_slice_bytes", "slice_time_s", "credit_bytes", "checksum"),
    *("share_name", "share_socket", "autoload", "start_marks", "loss_note"),
}


def collect_variables(environ: Mapping[str, str], *, outer: Mapping[str, str], **arguments: Any) -> Variables:
    """Collect all settings; `outer` is the environment before options of the command were added to it."""
    sources = resolve_settings(environ, **arguments)
    known = {source.variable for source in sources}
    complaint = worker_complaint = ""
    if not any(source.error for source in sources):
        complaint = _try(lambda: read_job_settings(environ))
        worker_complaint = "" if complaint else _try(lambda: read_settings(environ))
    return Variables(
        [_describe(source, environ, outer) for source in sources],
        sorted(name for name in environ if name.startswith(PREFIX) and name not in known),
        complaint,
        worker_complaint,
    )


def _try(read: Any) -> str:
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""


def _describe(source: ResolvedSetting, environ: Mapping[str, str], outer: Mapping[str, str]) -> Setting:
    origin, value = source.origin, source.value
    if origin is Origin.VARIABLE and environ[source.variable] != outer.get(source.variable):
        origin = Origin.ARGUMENT
    if source.name in _SECRETS and value:
        value = f"set, {format_quantity(len(value), 'character')}"
    return Setting(source.name, source.variable, value, origin.value, source.error)


def judge_variables(facts: Variables) -> list[Finding]:
    findings = [_judge_complaint(setting) for setting in facts.settings if setting.complaint]
    findings += [_judge_unknown(name) for name in facts.unknown]
    if facts.complaint:
        cure = "change one of the variables that the message names (see: undertow env)"
        findings.append(fail(SETTINGS, facts.complaint, cure))
    if facts.worker_complaint:
        cure = "unset RANK and WORLD_SIZE before you start by hand; undertow run sets its own"
        findings.append(warn(SETTINGS, facts.worker_complaint, cure))
    changed = sum(setting.origin != Origin.DEFAULT.value for setting in facts.settings)
    if not findings:
        findings.append(ok(SETTINGS, f"{changed or 'none'} of {len(facts.settings)} set, the others at their default"))
    return findings


def _judge_complaint(setting: Setting) -> Finding:
    cure = f"correct or unset {setting.variable} (see: undertow env)"
    if setting.name in _OF_WORKERS:
        return warn(SETTINGS, f"{setting.complaint}; undertow run sets its own", cure)
    return fail(SETTINGS, setting.complaint, cure)


def _judge_unknown(name: str) -> Finding:
    near = difflib.get_close_matches(name, [variable for variable, _, _ in table()], n=1)
    cure = f"did you mean {near[0]}? Otherwise unset it" if near else "unset it (undertow env lists all settings)"
    return warn(SETTINGS, f"{name} is set, but undertow has no such setting: it has no effect", cure)


def select_common(facts: Variables) -> dict[str, str]:
    """Return the settings that must be the same on all hosts, by variable."""
    return {setting.variable: setting.value for setting in facts.settings if setting.name not in _OF_A_HOST}

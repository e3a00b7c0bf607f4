"""docker-compose.yml as a real compose reads it, and as `make stack` does."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings_file import load_settings
from deploy.stack.compose_check import PROFILES, resolved
from deploy.stack.compose_file import read_services
from deploy.stack.dockerfile import last, stages
from deploy.stack.variables import interpolated, read_variables

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
EXAMPLE = read_variables(ROOT / ".env.example")
SECRETS = {"REDIS_PASSWORD": "rdsecret", "GRAFANA_PASSWORD": "gfsecret", "KVROUTE_TOKEN": "tksecret", "HF_TOKEN": "hf"}
EACH_PROFILE = pytest.mark.parametrize("profile", PROFILES)
Service = dict[str, Any]


@functools.cache
def real(profile: str) -> dict[str, Service]:
    """The services as the real compose resolves them."""
    return resolved(profile)


def test_each_profile_has_the_same_host_names() -> None:
    hosts = {profile: {host for one in real(profile).items() for host in _hosts(*one)} for profile in PROFILES}
    engines = {"vllm-0", "vllm-1", "sglang-0"}
    rest = {"gateway", "router-0", "router-1", "redis", "prometheus", "grafana"}
    assert hosts["gpu"] == rest | engines
    assert hosts["cpu"] == rest | engines | {f"cpu-{name}" for name in engines}


@EACH_PROFILE
def test_every_service_has_a_health_check_and_restarts(profile: str) -> None:
    for service in real(profile).values():
        check = service["healthcheck"]
        assert check["test"][0] in ("CMD", "CMD-SHELL")
        assert {"interval", "timeout", "retries", "start_period"} <= set(check)
        assert service["restart"] == "unless-stopped"


@EACH_PROFILE
def test_every_service_is_limited(profile: str) -> None:
    for service in real(profile).values():
        limits = service["deploy"]["resources"]["limits"]
        assert float(limits["cpus"]) > 0
        assert re.fullmatch(r"\d+[mg]?", str(limits["memory"]))
        assert int(service["pids_limit"]) > 0
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@EACH_PROFILE
def test_no_service_may_more_than_it_needs(profile: str) -> None:
    for service in real(profile).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service)
        assert all(_mount_is_read_only(volume) for volume in service.get("volumes", []))


@EACH_PROFILE
def test_images_have_fixed_versions(profile: str) -> None:
    for service in real(profile).values():
        tag = service["image"].partition(":")[2]
        assert re.search(r"\d+\.\d+\.\d+", tag), service["image"]


@EACH_PROFILE
def test_ports_are_published_on_this_machine_only_and_few(profile: str) -> None:
    published = {name: one["ports"] for name, one in real(profile).items() if one.get("ports")}
    assert set(published) == {"gateway", "prometheus", "grafana"}
    for ports in published.values():
        assert all(_host_address(port) == "127.0.0.1" for port in ports)


def test_redis_and_the_engines_are_in_networks_without_a_way_out() -> None:
    networks = yaml.safe_load(COMPOSE.read_text())["networks"]
    inside = {name for name, options in networks.items() if options and options.get("internal")}
    for name in ("redis", "cpu-vllm-0", "cpu-vllm-1", "cpu-sglang-0", "router-0", "router-1"):
        assert set(real("cpu")[name]["networks"]) <= inside
    assert set(real("cpu")["redis"]["networks"]) == {"state"}


@EACH_PROFILE
def test_no_secret_stands_on_a_command_line(profile: str) -> None:
    for service in read_services(COMPOSE, EXAMPLE | SECRETS, profile):
        words = " ".join((*service.command, *service.health.command))
        assert not [secret for secret in SECRETS.values() if re.search(rf"\b{secret}\b", words)]


def test_each_secret_reaches_only_those_that_need_it() -> None:
    holders: dict[str, set[str]] = {name: set() for name in SECRETS}
    for service in (one for profile in PROFILES for one in read_services(COMPOSE, EXAMPLE | SECRETS, profile)):
        for name, secret in SECRETS.items():
            if any(secret in value for value in service.environment.values()):
                holders[name].add(service.name)
    routers = {"router-0", "router-1"}
    assert holders == {
        "REDIS_PASSWORD": routers | {"redis"},
        "GRAFANA_PASSWORD": {"grafana"},
        "KVROUTE_TOKEN": routers | {"gateway"},
        "HF_TOKEN": {"vllm-0", "vllm-1", "sglang-0"},
    }


@EACH_PROFILE
def test_make_stack_reads_what_compose_reads(profile: str) -> None:
    ours = {service.name: service for service in read_services(COMPOSE, EXAMPLE, profile)}
    assert set(ours) == set(real(profile))
    for name, service in real(profile).items():
        told = [*(service.get("entrypoint") or []), *(service.get("command") or [])]
        words = tuple(word.replace("$$", "$") for word in told)  # compose prints a file that can be read again
        assert ours[name].command[len(ours[name].command) - len(words) :] == words
        assert ours[name].environment == {key: str(value) for key, value in service.get("environment", {}).items()}
        assert [str(port) for port in ours[name].ports] == [str(port) for port in service["expose"]]


def test_the_example_explains_every_variable_that_is_asked_for() -> None:
    asked = set(re.findall(r"(?<!\$)\$\{([A-Z_0-9]+)", COMPOSE.read_text()))
    assert set(EXAMPLE) == asked | {"COMPOSE_PROFILES"}
    assert EXAMPLE["COMPOSE_PROFILES"] == "cpu"
    documented = (ROOT / "docs" / "deploy.md").read_text()
    assert [name for name in EXAMPLE if f"`{name}`" not in documented] == []


def test_defaults_in_the_compose_file_are_those_of_the_example() -> None:
    text = re.sub(r"(?<!\$)\$\{([A-Z_0-9]+):\?[^}]*\}", "change-me", COMPOSE.read_text())
    assert interpolated(yaml.safe_load(text), {}) == interpolated(yaml.safe_load(text), EXAMPLE)


def test_the_routers_accept_their_settings(tmp_path: Path) -> None:
    for token, shown in (("", None), ("tksecret", "tksecret")):
        services = read_services(COMPOSE, EXAMPLE | {"KVROUTE_TOKEN": token}, "cpu")
        router = next(service for service in services if service.name == "router-0")
        settings = load_settings(router.mounts[0].source, router.environment)
        assert (settings.auth.token and settings.auth.token.get_secret_value()) == shown
        assert settings.state.get_secret_value() == "redis://:change-me@redis:6379/0"
        assert {one.id for one in settings.instances} == {"vllm-0", "vllm-1", "sglang-0"}
        assert {one.model for one in settings.instances} == {EXAMPLE["MODEL"]}
        assert settings.hash.algorithm == "sha256_cbor"


def test_the_fleet_names_ports_that_the_engines_expose() -> None:
    fleet = yaml.safe_load((ROOT / "deploy/stack/fleet.yaml").read_text())["instances"]
    asked = re.findall(
        r"//([\w-]+):(\d+)", " ".join(str(one[key]) for one in fleet for key in ("url", "events", "replay"))
    )
    for profile in PROFILES:
        services = read_services(COMPOSE, EXAMPLE, profile)
        offered = {(host, port) for one in services for host in one.hosts for port in one.ports}
        assert {(host, int(port)) for host, port in asked} <= offered


@pytest.mark.parametrize("image", ["router", "engine"])
def test_the_last_layer_of_an_image_is_slim_and_unprivileged(image: str) -> None:
    *_, build, final = stages((ROOT / f"deploy/docker/{image}.Dockerfile").read_text())
    base = final[0].argument
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)
    assert build[0].argument == f"{base} AS build"
    user = last(final, "USER")
    assert user is not None
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user.argument)
    runs = " ".join(instruction.argument for instruction in final if instruction.name == "RUN")
    assert not re.search(r"apt|pip|gcc|g\+\+|make|curl", runs)
    assert last(final, "HEALTHCHECK") is not None
    removed = re.search(r"uninstall --yes ([a-z -]+)", " ".join(one.argument for one in build))
    assert removed
    assert {"scikit-build-core", "pip"} <= set(removed.group(1).split())


@pytest.mark.parametrize("image", ["router", "engine"])
def test_what_an_image_copies_exists_and_is_not_ignored(image: str) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for stage in stages((ROOT / f"deploy/docker/{image}.Dockerfile").read_text()):
        for instruction in stage:
            if instruction.name == "COPY" and not instruction.argument.startswith("--from"):
                for source in instruction.argument.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert source in allowed, source


def _hosts(name: str, service: Service) -> set[str]:
    networks = service["networks"]
    return {name} | {alias for options in networks.values() if options for alias in options.get("aliases", [])}


def _host_address(port: object) -> str:
    """Old and new composes print ports in two forms."""
    return str(port["host_ip"]) if isinstance(port, dict) else str(port).rpartition(":")[0].rpartition(":")[0]


def _mount_is_read_only(volume: object) -> bool:
    """A file or folder of the repository; a named volume may be written."""
    text = str(volume)
    return text.endswith(":ro") if text.startswith("/") else True

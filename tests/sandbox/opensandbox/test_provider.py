"""The provider itself: settings, refusals, and what goes wrong with a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from gym.composition.compose import compose
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.planning.resolve import resolve
from gym.sandbox.interface import Mount, Resources, SandboxSpec
from gym.sandbox.providers.opensandbox import OpenSandboxConfig, OpenSandboxProvider
from tests.sandbox.opensandbox.deployment import Server
from tests.sandbox.running import PROJECT, run_python


def test_settings() -> None:
    with pytest.raises(ValidationError, match="domian"):
        OpenSandboxConfig.model_validate({"domian": "x"})
    with pytest.raises(ValidationError, match="domain"):
        OpenSandboxConfig(domain="http://boxes")
    for name, field in OpenSandboxConfig.model_fields.items():
        assert field.description, name
    assert OpenSandboxProvider.config_type is OpenSandboxConfig


def test_the_option_is_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSANDBOX_DOMAIN", "boxes.invalid:8080")
    monkeypatch.setenv("OPENSANDBOX_API_KEY", "sk-boxes-1")
    resolved = resolve(compose(["+experiment=onboarding", "sandbox=opensandbox"], None))
    resolved.raise_problems()
    config = resolved.components["sandbox"].config
    assert isinstance(config, OpenSandboxConfig)
    assert (config.domain, config.api_key) == ("boxes.invalid:8080", "sk-boxes-1")
    assert "sk-boxes-1" not in str(resolved.redactor.mapping(resolved.values))
    template = PROJECT / "gym/sandbox/providers/opensandbox/configs/opensandbox.yaml"
    assert OmegaConf.load(template).sandbox["_target_"].endswith(".OpenSandboxProvider")


async def test_specs_that_it_refuses_before_it_asks_anybody(tmp_path: Path) -> None:
    provider = OpenSandboxProvider(OpenSandboxConfig(domain="boxes.invalid"))
    spec = SandboxSpec(
        workdir="/",
        network="none",
        resources=Resources(pids=1, disk_mib=1),
        mounts=(Mount(tmp_path, "/gym/x"),),
    )
    with pytest.raises(UserError) as caught:
        await provider.create(spec)
    keys = ["network", "workdir", "image", "resources.pids", "mounts"]
    assert [problem.key for problem in caught.value.problems] == keys
    assert provider.isolated
    assert provider.describe().startswith("OpenSandbox at boxes.invalid (SDK ")


WITHOUT = """
import asyncio, sys
sys.modules["opensandbox"] = None
from gym.errors import UserError
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.opensandbox import OpenSandboxConfig, OpenSandboxProvider

print(OpenSandboxProvider.unavailable)
provider = OpenSandboxProvider(OpenSandboxConfig(domain="d", default_image="i"))
print(provider.describe())
for use in (lambda: provider.create(SandboxSpec(network="open")), lambda: provider.connect({}), provider.sweep):
    try:
        asyncio.run(use())
    except UserError as error:
        print(error)
"""


def test_without_the_package() -> None:
    done = run_python(WITHOUT)
    said = "the package `opensandbox` is not installed; run: pip install 'hydra-gym[opensandbox]'"
    lines = [said, "OpenSandbox at d (SDK not installed)", *[f"sandbox  {said}"] * 3]
    assert done.stdout.splitlines() == lines, done.stderr


def test_the_import_is_light() -> None:
    absent = ["opensandbox", "httpx", "docker", "fastapi", "hydra"]
    script = f"import sys, gym.sandbox.providers.opensandbox; print([n for n in {absent} if n in sys.modules])"
    done = run_python(script)
    assert done.stdout == "[]\n", done.stderr


async def failed(provider: OpenSandboxProvider, spec: SandboxSpec) -> Exception:
    with pytest.raises((UserError, EpisodeFailure)) as caught:
        await provider.create(spec)
    return caught.value


async def test_a_deployment_that_is_not_there() -> None:
    config = OpenSandboxConfig(domain="127.0.0.1:1", default_image="i", max_retries=1)
    failure = await failed(OpenSandboxProvider(config), SandboxSpec(network="open"))
    assert isinstance(failure, EpisodeFailure)
    assert failure.kind == "sandbox_start"
    assert "OpenSandbox at 127.0.0.1:1 could not make a sandbox: " in failure.message
    provider = OpenSandboxProvider(config)
    for asked in (provider.sweep(), provider.prepare([None])):
        with pytest.raises(
            UserError, match=r"sandbox\.domain  OpenSandbox at .* cannot be reached: .*OPENSANDBOX_DOMAIN"
        ):
            await asked


async def test_a_wrong_key_is_a_mistake_of_the_user(deployment: Server) -> None:
    for key in ("wrong", None):
        provider = OpenSandboxProvider(deployment.config(api_key=key))
        for asked in (provider.sweep(), provider.prepare([None])):
            with pytest.raises(
                UserError, match=r"sandbox.api_key  OpenSandbox at .* refuses the key: .*OPENSANDBOX_API_KEY"
            ):
                await asked
        failure = await failed(provider, SandboxSpec())
        assert isinstance(failure, UserError)
        assert "refuses the key" in str(failure)
        assert "wrong" not in str(failure)


async def test_an_image_that_is_not_there(deployment: Server) -> None:
    failure = await failed(OpenSandboxProvider(deployment.config()), SandboxSpec(image="no.invalid/such:image"))
    assert isinstance(failure, EpisodeFailure)
    assert failure.kind == "sandbox_start"
    assert "no.invalid/such:image" in failure.message


async def test_what_the_deployment_refuses_is_told_in_its_own_words(deployment: Server) -> None:
    failure = await failed(OpenSandboxProvider(deployment.config()), SandboxSpec(ttl_seconds=3e8))
    assert isinstance(failure, UserError)
    assert "refuses this sandbox: " in str(failure)


@pytest.mark.parametrize("descriptor", [{}, {"domain": "elsewhere", "sandbox_id": "x"}])
async def test_descriptors_of_other_deployments(deployment: Server, descriptor: dict[str, str]) -> None:
    with pytest.raises(EpisodeFailure, match="no sandbox") as caught:
        await OpenSandboxProvider(deployment.config()).connect(dict(descriptor))
    assert caught.value.kind == "sandbox_lost"

"""Settings: what is accepted, and that what is not stops the start with words that help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.settings import Settings
from app.settings_file import SettingsError, load_settings
from engine.stream import ListenerLimits
from index.worker import EngineKind
from router.settings import RouterSettings

INSTANCE = {"id": "a", "engine": "vllm", "model": "m", "url": "http://a:8000"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def load(file: Path, text: str, **environ: str) -> Settings:
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    return load_settings(file, environ)


def refusal(file: Path, text: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(file, text, **environ)
    return str(caught.value)


def one_instance(**values: object) -> str:
    return json.dumps({"instances": [INSTANCE | values]})


def test_an_empty_file_and_no_file_mean_the_defaults(file: Path) -> None:
    assert load(file, "") == load_settings(None, {}) == Settings()
    assert Settings().limits.body_bytes == 16_777_216
    assert Settings().limits.prompt_tokens == 1_048_576
    assert Settings().limits.route_timeout_s == 5


def test_sections_that_are_commented_out_mean_the_defaults(file: Path) -> None:
    assert load(file, "hash:\n  # seed: auto\nlimits:\ninstances:\n") == Settings()


def test_the_documented_example_is_read(file: Path) -> None:
    settings = load(
        file,
        """
        state: memory://
        hash: {algorithm: sha256_cbor, seed: "0", policy: enforce}
        auth: {token: null}
        limits: {body_bytes: 16777216, prompt_tokens: 1048576, route_timeout_s: 5}
        models: {org/other: {hash: {seed: none}}}
        instances:
          - id: vllm-0
            engine: vllm
            model: meta-llama/Llama-3.1-8B-Instruct
            url: http://VLLM-0:8000/
            events: tcp://vllm-0:5557
            replay: tcp://vllm-0:5558
            topic: ""
            dp_size: 1
            block_size: null
            speculative: eagle
            prefix_match_unit: null
            weight: 2
            labels: {zone: a}
        """,
    )
    (instance,) = settings.instances
    assert instance.engine is EngineKind.VLLM
    assert instance.url == "http://vllm-0:8000"
    assert instance.weight == 2.0
    assert settings.hash_for("unlisted") == settings.hash
    assert settings.hash_for("org/other").model_dump() == {
        "algorithm": "sha256_cbor",
        "seed": "none",
        "policy": "enforce",
        "verify": "roots",
    }


@pytest.mark.parametrize("name", ["a/b", "100%", "名前 1", "x" * 128, "-", "a:b@c", "...", "./."])
def test_an_id_is_any_text_without_control_characters(file: Path, name: str) -> None:
    assert load(file, one_instance(id=name)).instances[0].id == name


@pytest.mark.parametrize("name", [".", ".."])
def test_ids_that_no_client_can_ask_for_are_refused(file: Path, name: str) -> None:
    text = refusal(file, one_instance(id=name))
    assert "instances.0.id" in text
    assert f"'{name}'" in text or f'"{name}"' in text
    assert 'must not be "." or ".."' in text


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "\x00", "\x7f", 7, True, None, ["a"]])
def test_other_ids_are_refused(file: Path, name: object) -> None:
    assert "instances.0.id" in refusal(file, one_instance(id=name))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("url", "ftp://a"),
        ("url", "a:8000"),
        ("url", "http://"),
        ("url", "http://a:0"),
        ("url", "http://a:99999"),
        ("url", "http://a b"),
        ("url", "http://a?x=1"),
        ("url", "http://user:secret-word@a"),
        ("events", "tcp://a"),
        ("events", "tcp://a:0"),
        ("events", "tcp://a:65536"),
        ("events", "udp://a:1"),
        ("events", "tcp://a:1/x"),
        ("replay", ""),
        ("weight", 0),
        ("weight", -1),
        ("weight", "1"),
        ("weight", True),
        ("dp_size", 0),
        ("dp_size", 1025),
        ("dp_size", 1.0),
        ("block_size", 0),
        ("speculative", "medusa"),
        ("engine", "tgi"),
        ("labels", {"zone": 1}),
        ("labels", ["zone"]),
        ("topic", None),
        ("unheard_of", 1),
    ],
)
def test_a_wrong_value_is_named_with_its_place(file: Path, key: str, value: object) -> None:
    text = refusal(file, one_instance(**{key: value}))
    assert f"instances.0.{key}" in text
    assert str(file) in text
    assert "secret-word" not in text


@pytest.mark.parametrize("weight", [".nan", ".inf", "-.inf", "1e400"])
def test_a_weight_is_finite(file: Path, weight: str) -> None:
    assert "instances.0.weight" in refusal(
        file, f"instances: [{{id: a, engine: vllm, model: m, url: 'http://a', weight: {weight}}}]"
    )


def test_endpoints_may_have_wildcard_hosts_and_brackets(file: Path) -> None:
    for endpoint in ("tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://[fe80::1]:5557", "ipc:///run/kv"):
        assert load(file, one_instance(events=endpoint)).instances[0].events == endpoint


def test_ranks_must_have_ports_of_their_own(file: Path) -> None:
    both = {"events": "tcp://a:5557", "replay": "tcp://a:5558"}
    assert load(file, one_instance(dp_size=1, **both))
    assert "share a port" in refusal(file, one_instance(dp_size=2, **both))
    assert "65535" in refusal(file, one_instance(dp_size=10, events="tcp://a:65530"))
    assert "ipc" in refusal(file, one_instance(dp_size=2, events="ipc:///run/kv"))


def test_ids_are_unique(file: Path) -> None:
    assert "0 and 1 have the same id" in refusal(file, json.dumps({"instances": [INSTANCE, INSTANCE]}))


@pytest.mark.parametrize("seed", ["42", "042", "1e3", "0x10", "true", "no", "2024-01-01", "[1]"])
def test_a_seed_that_yaml_would_change_must_be_quoted(file: Path, seed: str) -> None:
    assert "hash.seed" in refusal(file, f"hash: {{seed: {seed}}}")
    assert load(file, f"hash: {{seed: '{seed}'}}").hash.seed == seed


def test_a_number_for_a_text_is_refused_with_the_advice_to_quote_it(file: Path) -> None:
    text = refusal(file, "hash: {seed: 42}")
    assert "hash.seed = 42" in text
    assert "quotes" in text


def test_a_null_seed_is_the_engines_default_text(file: Path) -> None:
    assert load(file, "hash: {seed: null}").hash.seed == "none"
    assert load(file, "hash: {seed: none}").hash.seed == "none"
    assert load(file, 'hash: {seed: ""}').hash.seed == ""


def test_xxhash_needs_a_seed_also_when_model_and_fleet_are_put_together(file: Path) -> None:
    assert "xxhash" in refusal(file, "hash: {algorithm: xxhash, seed: none}")
    assert "xxhash" in refusal(file, "hash: {algorithm: xxhash_cbor}\nmodels: {m: {hash: {seed: none}}}")
    assert load(file, 'hash: {algorithm: xxhash, seed: "0"}')


@pytest.mark.parametrize("state", ["redis://user:secret-word@host", "rediss://h", "redis+cluster://h:1", "memory://"])
def test_state_lies_in_memory_or_redis_and_passwords_are_not_shown(file: Path, state: str) -> None:
    settings = load(file, f"state: {state}")
    assert settings.state.get_secret_value() == state
    assert "secret-word" not in repr(settings)


def test_what_a_missing_url_and_an_empty_state_must_be_is_said_once(file: Path) -> None:
    text = refusal(file, "instances: [{id: a, engine: vllm, model: m}]")
    assert "instances.0.url: is missing; allowed: http://host:port, where" in text
    text = refusal(file, "", KVROUTE_STATE="")
    assert 'state = "": must begin with one of memory://, redis://' in text
    assert text.count("redis+cluster://") == 1


@pytest.mark.parametrize(
    "state", ["file:///x", "redis://user:secret-word@host/x", "postgres://secret-word@h", "redis://"]
)
def test_state_nowhere_else_and_passwords_are_not_shown(file: Path, state: str) -> None:
    text = refusal(file, f"state: {state}")
    assert "state" in text
    assert "secret-word" not in text


@pytest.mark.parametrize("token", ["", "two words", "ünicode", 5])
def test_a_bad_token_is_refused_without_showing_it(file: Path, token: object) -> None:
    text = refusal(file, json.dumps({"auth": {"token": token}}))
    assert "auth.token" in text
    assert "two words" not in text


def test_a_token_does_not_show_in_the_settings(file: Path) -> None:
    settings = load(file, "auth: {token: secret-word}")
    assert settings.auth.token is not None
    assert settings.auth.token.get_secret_value() == "secret-word"
    assert "secret-word" not in repr(settings)


def test_an_unknown_key_brings_up_the_one_that_was_meant(file: Path) -> None:
    assert "hash.algoritm: is not a known key; did you mean algorithm?" in refusal(file, "hash: {algoritm: auto}")
    assert "did you mean limits?" in refusal(file, "limit: {}")
    assert "allowed: state, state_tokens, state_store, hash" in refusal(file, "zzz: 1")
    assert "did you mean hash?" in refusal(file, "models: {hash: {hsh: {}}}")


def test_every_fault_is_told_at_once(file: Path) -> None:
    text = refusal(file, "hash: {seed: 1, policy: maybe}\nlimits: {body_bytes: 1.5, prompt_tokens: -1}")
    assert {line.split(" = ")[0].split(": ")[1] for line in text.splitlines()} == {
        "hash.seed",
        "hash.policy",
        "limits.body_bytes",
        "limits.prompt_tokens",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hash: {seed: auto}\nhash: {}", "line 2"),
        ("hash: {seed: auto, seed: none}", "given twice"),
        ("hash: [", "line 1"),
        ("- 1", "mapping"),
        ("'text'", "mapping"),
        ("1: 2", "keys must be text"),
        ("? [a]\n: 1", "keys must be text"),
        ("a: 2024-13-45", "month"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("!!python/object/apply:os.getcwd []", "tag"),
        ("hash: auto", "group of keys"),
    ],
)
def test_what_is_no_settings_file_says_why(file: Path, text: str, words: str) -> None:
    found = refusal(file, text)
    assert words in found
    assert str(file) in found


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"a: \xff")
    for place, words in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(SettingsError, match=words):
            load_settings(place, {})


def test_a_byte_order_mark_is_no_fault(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfstate: memory://")
    assert load_settings(file, {}) == Settings()


def test_the_environment_wins(file: Path) -> None:
    settings = load(
        file,
        'hash: {seed: "1", algorithm: sha256}\nlog: {access: false}',
        KVROUTE_HASH__SEED="042",
        KVROUTE_LIMITS__BODY_BYTES="2048",
        KVROUTE_LIMITS__ROUTE_TIMEOUT_S="1e1",
        KVROUTE_AUTH__TOKEN="t",
        KVROUTE_LOG__ACCESS="True",
        KVROUTE_STATE="memory://",
        KVROUTE_INSTANCES=json.dumps([INSTANCE | {"id": "\U0001f600"}]),
    )
    assert settings.hash.seed == "042"
    assert settings.hash.algorithm == "sha256"
    assert settings.limits.body_bytes == 2048
    assert settings.limits.route_timeout_s == 10
    assert settings.auth.token is not None
    assert settings.log.access
    assert settings.instances[0].id == "\U0001f600"


def test_an_environment_value_reaches_into_a_section_given_as_a_whole(file: Path) -> None:
    settings = load(file, "", KVROUTE_HASH='{"seed": "1", "policy": "translate"}', KVROUTE_HASH__SEED="2")
    assert (settings.hash.seed, settings.hash.policy) == ("2", "translate")


def test_null_in_the_environment_takes_a_token_away(file: Path) -> None:
    assert load(file, "auth: {token: t}", KVROUTE_AUTH__TOKEN="null").auth.token is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("KVROUTE_HASH__SED", "1", "did you mean seed?"),
        ("KVROUTE_HAHS__SEED", "1", "did you mean HASH?"),
        ("KVROUTE_STAET", "memory://", "did you mean KVROUTE_STATE?"),
        ("KVROUTE_HASH_SEED", "5", "did you mean KVROUTE_HASH__SEED?"),
        ("KVROUTE_LIMITS_BODY_BYTES", "2048", "did you mean KVROUTE_LIMITS__BODY_BYTES?"),
        ("KVROUTE_STATE_STORE_TTL_S", "5", "did you mean KVROUTE_STATE_STORE__TTL_S?"),
        ("KVROUTE_CONFG", "fleet.yaml", "did you mean KVROUTE_CONFIG?"),
        ("KVROUTE_INSTANCES__0__URL", "http://a", "KVROUTE_INSTANCES takes the whole list as JSON"),
        ("KVROUTE_LIMITS__BODY_BYTES", "many", "limits.body_bytes"),
        ("KVROUTE_LIMITS__BODY_BYTES", "9" * 5000, "limits.body_bytes"),
        ("KVROUTE_INSTANCES", "[{", "instances"),
        ("KVROUTE_INSTANCES", '[{"id": "a", "id": "b"}]', "instances"),
        ("KVROUTE_AUTH__TOKEN", "two words", "auth.token"),
        ("KVROUTE_STATE__X", "1", "state"),
    ],
)
def test_a_wrong_variable_is_named(file: Path, name: str, value: str, words: str) -> None:
    text = refusal(file, "state: memory://", **{name: value})
    assert words in text
    assert name in text
    assert len(text) < 400


def test_variables_that_kubernetes_makes_are_none_of_ours(file: Path) -> None:
    environ = {
        "KVROUTE_PORT": "tcp://10.0.0.1:8900",
        "KVROUTE_SERVICE_HOST": "10.0.0.1",
        "KVROUTE_SERVICE_PORT": "8900",
        "KVROUTE_SERVICE_PORT_HTTP": "8900",
        "KVROUTE_PORT_8900_TCP": "tcp://10.0.0.1:8900",
        "KVROUTE_PORT_8900_TCP_PROTO": "tcp",
        "KVROUTE_PORT_8900_TCP_PORT": "8900",
        "KVROUTE_PORT_8900_TCP_ADDR": "10.0.0.1",
        "KVROUTE_REDIS_SERVICE_HOST": "10.0.0.2",
        "KVROUTE_REDIS_PORT_6379_TCP": "tcp://10.0.0.2:6379",
        "PATH": "/bin",
    }
    assert load(file, "", **environ) == Settings()


@pytest.mark.parametrize(
    "name", ["CONFIG", "CORE", "TOKEN", "TOKEN_FILE", "URLS", "TIMEOUT_S", "VERSION", "TRACE", "LIVE", "IMAGE", ""]
)
def test_variables_that_other_parts_read_may_stand_beside_the_settings(file: Path, name: str) -> None:
    assert load(file, "", **{f"KVROUTE_{name}": "x"}) == Settings()


def test_router_and_listener_sections_mirror_the_numbers_they_stand_for(file: Path) -> None:
    assert Settings().router.router() == RouterSettings()
    assert Settings().listener.listener() == ListenerLimits()
    settings = load(file, "router: {predict_ttl_s: 0, guard_floor_requests: 4}\nlistener: {fruitless_asks: 3}")
    assert settings.router.router().predict_ttl_s == 0
    assert settings.router.router().guard_floor_requests == 4
    assert settings.listener.listener().fruitless_asks == 3


def test_every_key_says_what_is_allowed() -> None:
    def check(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{path}{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                check(field.annotation, f"{path}{name}.")

    check(Settings, "")


@given(st.text(max_size=200))
def test_any_text_is_settings_or_an_error_in_encodable_lines(text: str) -> None:
    try:
        Settings.model_validate({"hash": {"seed": text}, "models": {text: {}}})
    except ValueError:
        return
    assert text
    assert len(text) <= 512


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_value_in_the_environment_is_a_setting_or_an_error(value: object) -> None:
    environ = {"KVROUTE_INSTANCES": json.dumps(value), "KVROUTE_HASH": str(value).replace("\0", "")}
    try:
        load_settings(None, environ)
    except SettingsError as error:
        str(error).encode()

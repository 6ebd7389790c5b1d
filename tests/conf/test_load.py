"""Presets load, overrides apply, and each mistake gives one line that says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from conf.byte_size import PATTERN, Bytes
from conf.load import ConfigError, load_config, preset_names
from conf.schema import PipelineConfig

REQUIRED_PRESETS = {"demo", "cora", "citeseer", "pubmed", "musae_facebook", "edge_list", "ogb", "igb"}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_names_its_run(name: str) -> None:
    assert load_config(name).name == name


def test_the_promised_presets_exist() -> None:
    assert set(preset_names()) >= REQUIRED_PRESETS


def test_the_demo_preset_is_the_default_configuration_with_the_same_cache_on_any_machine() -> None:
    demo = load_config("demo")
    assert demo.cache.device_budget == 6 << 20 and PipelineConfig().cache.device_budget == "auto"
    assert demo.model_copy(update={"cache": PipelineConfig().cache}) == PipelineConfig()


def test_a_file_is_read_and_wins_over_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").write_text("name: mine\ntraining:\n  epochs: 7\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = load_config("demo", ["training.epochs=8"])
    assert (config.name, config.training.epochs) == ("mine", 8)


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    assert load_config(tmp_path / "empty.yaml") == PipelineConfig()


def test_override_values_are_yaml() -> None:
    overrides = [
        "sampling.fanouts=[5, -1]",
        "cache.device_budget=12MiB",
        "training.learning_rate=1e-3",
        "training.patience=3",
        "training.patience=",
        "layout.keep_ingest=true",
        "data.demo={nodes: 10, edges: 20}",
        "seed=18446744073709551615",
    ]
    config = load_config("demo", overrides)
    assert config.sampling.fanouts == (5, -1)
    assert config.cache.device_budget == 12 << 20
    assert config.training.learning_rate == 1e-3
    assert config.training.patience is None
    assert config.layout.keep_ingest is True
    assert (config.data.demo.nodes, config.data.demo.edges) == (10, 20)
    assert config.seed == 2**64 - 1


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("dem", [], "did you mean 'demo'?"),
        ("no/such.yaml", [], "neither a file nor a preset"),
        ("demo", ["model.hiden=3"], "unknown key 'model.hiden': did you mean 'model.hidden'?"),
        ("demo", ["epochs=3"], "did you mean 'profile.epochs' or 'cache.dynamic.epochs' or 'training.epochs'?"),
        ("demo", ["zzzz=3"], "unknown key 'zzzz': docs/configuration.md lists all keys"),
        ("demo", ["training.epochs=many"], "training.epochs: Input should be a valid integer"),
        ("demo", ["training.epochs=0"], "greater than or equal to 1 (got 0)"),
        ("demo", ["seed=18446744073709551616"], "seed: Input should be less than"),
        ("demo", ["model=3"], "model: Input should be a valid dictionary"),
        ("demo", ["sampling.fanouts=[0]"], "sampling: a fanout must be"),
        ("demo", ["model.kind=mlp"], "model.kind 'mlp' goes with"),
        ("demo", ["model.heads=4"], "go with model.kind 'gat'"),
        ("demo", ["model.kind=gat", "model.heads=7"], "model.heads must divide model.hidden"),
        ("demo", ["training.epochs"], "expected a.b=value"),
        ("demo", ["=3"], "expected a.b=value"),
        ("demo", ["a..b=3"], "expected a.b=value"),
        ("demo", ["name=["], "not valid YAML"),
        ("edge_list", ["data.edges=e", "data.delimiter=é"], "data.delimiter: String should match pattern"),
        ("edge_list", ["data.edges=e", "data.delimiter='\"'"], "data.delimiter: String should match pattern"),
        ("edge_list", ["data.edges=e", "data.delimiter=', '"], "data.delimiter: String should match pattern"),
        ("demo", ["name=2020-13-45"], "not valid YAML"),
        ("demo", ["name=" + "[" * 5000], "not valid YAML"),
        ("cora", ["data.demo.nodes=10"], "data.demo has no effect for format 'planetoid': remove it"),
        ("demo", ["data.demo.valid_fraction=0.31"], "train_fraction + 3 * valid_fraction must be at most 1"),
        ("demo", ["a=1", "b=1", "c=1", "d=1"], "and 1 more"),
        ("ogb", ["data.path="], "format 'ogb' needs data.path"),
        ("ogb", ["data.label_set=2K"], "data.label_set has no effect for format 'ogb'"),
        ("cora", ["data.edge_weights=drop"], "data.edge_weights has no effect for format 'planetoid'"),
        ("igb", ["data.url=file:///etc/passwd"], "data.url: String should match pattern"),
        ("igb", [f"data.checksum=md5:{'0' * 32}"], "data.checksum has no effect without data.url"),
        ("ogb", ["data.format=triples", "data.symmetrize=true"], "data.symmetrize would lose the relations of triples"),
        ("edge_list", ["data.format=npz", "data.split=provided"], "format 'npz' brings no split of its own"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(name: str, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name, overrides)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1", "not valid YAML"),
        (b"name: 2020-13-45", "not valid YAML"),
        (b"[" * 5000, "not valid YAML"),
        (b"name: &a [*a]", "values are nested without end"),
        (b"\x00", "not valid YAML"),
        (b"- 1\n- 2\n", "mapping of names to values (got list)"),
        (b"3: 4\n", "mapping of names to values"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"!!python/object/apply:os.system ['true']", "not valid YAML"),
        (b"training:\n  epohcs: 3\n", "did you mean 'training.epochs'?"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_budget_is_bytes_or_auto() -> None:
    assert load_config("demo", ["cache.device_budget=auto"]).cache.device_budget == "auto"
    message = r"demo: cache\.device_budget: 'lots' is no byte size: write 500MB or 2GiB, or auto$"
    with pytest.raises(ConfigError, match=message):
        load_config("demo", ["cache.device_budget=lots"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("7", 7), (" 7 MB ", 7_000_000), ("1.5kB", 1500), (".5GiB", 1 << 29), ("5G", 5_000_000_000),
     ("1.0e+3", 1000), ("5_000", 5000), ("9223372036854775807", (1 << 63) - 1)],
)  # fmt: skip
def test_a_byte_size_is_read_as_it_is_meant(text: str, expected: int) -> None:
    assert load_config("demo", [f"host_budget={text}"]).host_budget == expected


@pytest.mark.parametrize("unit", ["b", "B", "k", "KB", "kib", "MiB", "m", "G", "GB", "TiB", "P", "EB"])
def test_units_that_a_form_takes_are_those_that_are_read(unit: str) -> None:
    assert re.search(PATTERN, f"2 {unit}")
    assert int(TypeAdapter(Bytes).validate_python(f"2 {unit}")) > 0


@pytest.mark.parametrize("text", ["2 Mi", "2 bit", "2 kbit", "2 x", "MB", "2 MB 3"])
def test_what_a_form_does_not_take_is_not_read(text: str) -> None:
    assert not re.search(PATTERN, text)
    with pytest.raises(ValidationError, match="no byte size"):
        TypeAdapter(Bytes).validate_python(text)


@pytest.mark.parametrize(
    "text",
    ["12,000,000", "10 %", "10%", "64,MB", "5GB or so", "true", "0.5", "1.5", "1..5MB", ".inf", ".nan", "5 gigabytes",
     "-1", "- 5MB", "1e30", "[1]", "'12 000'"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["host_budget", "cache.device_budget", "sampling.in_flight_bytes"])
def test_what_is_no_byte_size_as_a_whole_is_refused_and_not_cut_short(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"demo: {key}: .* is no byte size: write 500MB or 2GiB(, or auto)?$"):
        load_config("demo", [f"{key}={text}"])


@pytest.mark.parametrize(
    "setting",
    ["host_budget=9223372036854775808", "host_budget=100EB", "sampling.fanouts=[5, 9223372036854775808]",
     "sampling.batch_size=9223372036854775808", "model.hidden=100000000000000000000", "data.demo.nodes=1e99"],
)  # fmt: skip
def test_a_number_that_nothing_can_count_to_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"demo: {setting.partition('=')[0]}: .*(below 2\^63|valid integer)"):
        load_config("demo", [setting])


@pytest.mark.parametrize("value", [".inf", ".nan", "-.inf"])
def test_a_float_is_finite(value: str) -> None:
    with pytest.raises(ConfigError, match=r"demo: training\.learning_rate: Input should be a finite number"):
        load_config("demo", [f"training.learning_rate={value}"])


def test_the_largest_numbers_are_read() -> None:
    config = load_config("demo", [f"seed={(1 << 64) - 1}", f"sampling.fanouts=[{(1 << 63) - 1}]"])
    assert (config.seed, config.sampling.fanouts) == ((1 << 64) - 1, ((1 << 63) - 1,))

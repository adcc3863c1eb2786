"""Outputs are compared by their arrays and values first; nothing in them is run; what differs first is named with its amount."""

import json
import os
import pickle
import struct
import zipfile

import pytest

from envlock.outputs import compare_files, compare_folders, describe, values_digest
from envlock.tensors import NotReadable, read_arrays

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def arrays(path):
    return {array.name: (array.dtype, array.shape, b"".join(array.pieces())) for array in read_arrays(path).arrays}


def save_safetensors(path, values, metadata=None):
    data, header, position = b"", {"__metadata__": metadata} if metadata else {}, 0
    for name, value in values.items():
        raw = value.tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [position, position + len(raw)]}
        data, position = data + raw, position + len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


SAMPLES = (
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
    np.array(3.5),
    np.zeros((0, 4), dtype=np.uint8),
    np.array([True, False]),
    np.array([1 + 2j], dtype=np.complex64),
)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.dtype}{list(sample.shape)}")
def test_npy_arrays_are_read_in_c_order(tmp_path, sample):
    np.save(tmp_path / "a.npy", sample)
    assert arrays(tmp_path / "a.npy") == {"": (str(sample.dtype), sample.shape, np.ascontiguousarray(sample).tobytes())}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_arrays_are_read(tmp_path, save):
    save(tmp_path / "a.npz", x=SAMPLES[0], y=SAMPLES[2])
    assert arrays(tmp_path / "a.npz")["x"] == ("float32", (2, 3, 4), SAMPLES[0].tobytes())


TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "part": torch.arange(20, dtype=torch.int64)[5:9],
    "steps": torch.arange(20, dtype=torch.int32)[::3],
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 4),
    "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_pt_tensors_are_read_without_torch(tmp_path, name):
    torch.save({"state": {name: TENSORS[name]}, "epoch": 3}, tmp_path / "a.pt")
    dtype, shape, data = arrays(tmp_path / "a.pt")[f"state.{name}"]
    expected = TENSORS[name].detach().contiguous()
    assert dtype == str(expected.dtype).removeprefix("torch.")
    assert shape == tuple(expected.shape)
    assert data == expected.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_everything_else_in_a_pt_is_a_plain_value(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimiser = torch.optim.Adam(model.parameters())
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "note": "x", "set": {2, 1}}, tmp_path / "a.pt")
    contents = read_arrays(tmp_path / "a.pt")
    assert {array.name for array in contents.arrays} == {"model.weight", "model.bias"}
    assert contents.plain["note"] == "'x'"
    assert contents.plain["optimiser.param_groups.0.lr"] == "0.001"


def test_a_whole_module_in_a_pt_is_read_and_not_built(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.pt")
    assert {array.shape for array in read_arrays(tmp_path / "a.pt").arrays} == {(2, 2), (2,)}


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_executed(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"x": Attack(tmp_path / "owned")}))
    read_arrays(tmp_path / "a.pt")
    assert not (tmp_path / "owned").exists()
    np.save(tmp_path / "b.npy", np.array([Attack(tmp_path / "owned")], dtype=object))
    with pytest.raises(NotReadable):
        read_arrays(tmp_path / "b.npy")
    assert values_digest(tmp_path / "b.npy") is None
    assert not (tmp_path / "owned").exists()


def test_safetensors_are_read(tmp_path):
    save_safetensors(tmp_path / "a.safetensors", {"w": SAMPLES[0]}, {"format": "pt"})
    assert arrays(tmp_path / "a.safetensors") == {"w": ("float32", (2, 3, 4), SAMPLES[0].tobytes())}


BROKEN = {
    "short.npy": b"\x93NUMPY\x01\x00\xff\xff",
    "text.npy": b"hello",
    "bomb.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    "code.npy": b"\x93NUMPY\x01\x00\x10\x00__import__('os')",
    "text.npz": b"hello",
    "old.pt": pickle.dumps([1]),
    "huge.safetensors": struct.pack("<Q", 2**60),
    "list.safetensors": struct.pack("<Q", 2) + b"[]",
    "empty.safetensors": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_compared_by_their_bytes(tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    assert values_digest(tmp_path / name) is None
    other = tmp_path / f"other-{name}"
    other.write_bytes(BROKEN[name] + b"!")
    assert compare_files(tmp_path / name, other, name).same == "different"


def test_a_damaged_member_of_a_zip_is_told(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(10_000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[5000] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    assert values_digest(tmp_path / "a.npz") is None


def test_a_file_that_ends_early_is_told(tmp_path):
    save_safetensors(tmp_path / "a.safetensors", {"w": SAMPLES[0]})
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-8])
    assert values_digest(tmp_path / "a.safetensors") is None


def pair(tmp_path, name, first, second):
    for folder, write in (("1", first), ("2", second)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / name)
    return compare_files(tmp_path / "1" / name, tmp_path / "2" / name, name)


def test_the_same_tensors_in_another_container_are_a_verdict_of_their_own(tmp_path):
    tensors = {"w": torch.ones(3)}
    torch.save(tensors, tmp_path / "one.pt")
    torch.save(tensors, tmp_path / "other-name.pt")
    assert (tmp_path / "one.pt").read_bytes() != (tmp_path / "other-name.pt").read_bytes()
    assert compare_files(tmp_path / "one.pt", tmp_path / "other-name.pt", "w").same == "same-values"
    assert values_digest(tmp_path / "one.pt") == values_digest(tmp_path / "other-name.pt")


def test_a_contiguous_copy_of_a_view_has_the_same_values(tmp_path):
    turned = torch.arange(6.0).reshape(2, 3).T
    found = pair(tmp_path, "a.pt", lambda p: torch.save({"w": turned}, p), lambda p: torch.save({"w": turned.contiguous()}, p))
    assert found.same == "same-values"


def test_the_first_different_element_and_the_amount_are_named(tmp_path):
    second = SAMPLES[0].copy()
    second[1, 2, 3] += 0.5
    found = pair(tmp_path, "a.npy", lambda p: np.save(p, SAMPLES[0]), lambda p: np.save(p, second))
    assert found.same == "different"
    assert found.first == "array '': element [1, 2, 3]"
    assert found.amount.startswith("1 of 24 elements, by 0.5 at most")


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (np.float32("nan"), np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0])])
def test_minus_zero_and_nan_are_compared_by_their_bits(tmp_path, one, other):
    first, second = (np.array([value], dtype=np.float32) for value in (one, other))
    found = pair(tmp_path, "a.npy", lambda p: np.save(p, first), lambda p: np.save(p, second))
    assert found.same == "different"
    assert "equal by value" in found.amount


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.uint8])
def test_differences_are_measured_in_every_type(tmp_path, dtype):
    first = torch.zeros(2, 3, dtype=dtype)
    second = first.clone()
    second[1, 0] = 2
    found = pair(tmp_path, "a.pt", lambda p: torch.save(first, p), lambda p: torch.save(second, p))
    assert found.first == "array '': element [1, 0]"
    assert found.amount == "1 of 6 elements, by 2 at most, relative 1"


def test_type_shape_and_names_are_compared_before_bits(tmp_path):
    found = pair(tmp_path, "a.npy", lambda p: np.save(p, np.zeros(4, np.float32)), lambda p: np.save(p, np.zeros((2, 2), np.float32)))
    assert found.amount == "float32 [4] against float32 [2, 2]"


def test_a_column_with_a_capital_o_is_no_object(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2, dtype=[("TOTAL", "<f4")]))
    assert [array.shape for array in read_arrays(tmp_path / "a.npy").arrays] == [(2,)]


@pytest.mark.parametrize(
    ("name", "one", "other", "same", "first"),
    [
        ("a.json", '{"a": 1, "b": [1.0]}', '{"b": [1], "a": 1}', "same-values", ""),
        ("a.json", '{"a": {"b": 0.5}}', '{"a": {"b": 0.25}}', "different", "a.b"),
        ("a.json", '{"a": true}', '{"a": 1}', "different", "a"),
        ("a.json", '{"a": NaN}', '{"a":NaN}', "same-values", ""),
        ("a.json", '{"a": 1}', "{", "different", "its bytes"),
        ("a.jsonl", '{"x": 1}\n{"x": 2}\n', '{"x":1}\n\n{"x":2.0}\n', "same-values", ""),
        ("a.jsonl", '{"x": 1}\n{"x": 2}\n', '{"x": 1}\n{"x": 3}\n', "different", "line 2.x"),
        ("a.csv", "e,loss\n1,0.50\n", "e,loss\r\n1.0,0.5\r\n", "same-values", ""),
        ("a.csv", "e,loss\n1,0.5\n", "e,loss\n1,0.75\n", "different", "row 2, column loss"),
        ("a.csv", "e\n1\n", "e\n1\n2\n", "different", "row 3, column e is in one only"),
        ("a.csv", "e,e\n1,2\n", "e,e\n3,2\n", "different", "row 2, column e"),
        ("a.json", '{"a": {"b": 1}, "a.b": 2}', '{"a": {"b": 3}, "a.b": 2}', "different", "a.b"),
        ("a.bin", "aXc", "aYc", "different", "byte 1"),
        ("a.bin", "abc", "abcd", "different", "byte 3"),
        ("a.bin", "abc", "abc", "identical", ""),
    ],
)
def test_files_are_compared_by_what_they_mean(tmp_path, name, one, other, same, first):
    found = pair(tmp_path, name, lambda p: p.write_text(one, newline=""), lambda p: p.write_text(other, newline=""))
    assert found.same == same
    assert first in found.first
    digests = [values_digest(tmp_path / folder / name) for folder in "12"]
    if None not in digests:
        assert (digests[0] == digests[1]) is (same != "different")


def test_files_that_only_one_run_wrote_are_named(tmp_path):
    for folder, name in (("1", "a"), ("1", "both"), ("2", "both"), ("2", "z/b")):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    found = {item.path: item.same for item in compare_folders(tmp_path / "1", tmp_path / "2")}
    assert found == {"a": "missing", "both": "identical", "z/b": "extra"}


def test_large_arrays_are_measured_in_a_bounded_part(tmp_path):
    big = np.zeros(3_000_000, np.float32)
    found = pair(tmp_path, "a.npy", lambda p: np.save(p, big), lambda p: np.save(p, big + 1))
    assert "at least" in found.amount
    assert found.first == "array '': element [0]"


def test_a_file_is_described_by_bytes_and_meaning(tmp_path):
    np.save(tmp_path / "a.npy", SAMPLES[0])
    (tmp_path / "b.bin").write_bytes(b"x")
    assert describe(tmp_path / "a.npy", "a.npy").values is not None
    assert describe(tmp_path / "b.bin", "b.bin").values is None

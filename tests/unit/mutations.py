"""Documents as no honest program writes them: a valid one, broken at a few random places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml
from hypothesis import strategies as st

Path = tuple[str | int, ...]
RAW = {
    "@huge@": "7" * 6000,  # more digits than Python turns into an integer (sys.get_int_max_str_digits)
    "@hex@": "0x" + "f" * 6000,
    "@date@": "2026-11-29",
    "@no-date@": "2026-13-45T99:99:99Z",
    "@sixty@": "1:30:00",
    "@nan@": ".nan",
    "@binary@": "!!binary aGk=",
    "@no-binary@": "!!binary é",
    "@set@": "!!set {a, b}",
    "@object@": "!!python/object/apply:os.system [ls]",
    "@null@": "~",
}
"""What stands for itself in a document, unquoted, and what is written for it."""

_DEEP: Any = "x"
for _ in range(60):
    _DEEP = [_DEEP]

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, 10**4000, 1e400, float("nan"), -0.5, 1e-320, *RAW),
    *("", " ", "\0", "a\0b", "\n", "\x1b[31m", "\ud800", "x\udfffy", "\u202e", "ﬁ", "名前", "٣.١١", "²", "①", "é" * 300, "a" * 70_000),
    *(
        "../../etc/passwd",
        "/",
        "//",
        ".",
        "..",
        "~",
        "%00",
        "http://[",
        "http://[::1",
        "https://h:99999999/x",
        "file:///etc/passwd",
        "{}",
        "{0}",
    ),
    *("sha256:" + "0" * 64, "sha256:" + "z" * 64, "sha256:../../x", "0" * 64, "2.5", "1e999", "3.11", "cpu", "9" * 5000, "1.2.3+x;y"),
    *([], {}, [[]], [None], [{}], {"": ""}, {"a": {"a": {}}}, {"\ud800": "\0"}, ["x"] * 3000, _DEEP),
)


def paths_in(value: Any, here: Path = ()) -> Iterator[Path]:
    """The place of every part of plain data, the whole first."""
    yield here
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from paths_in(part, (*here, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(document: Any, path: Path, how: str, value: Any, other: Path) -> Any:
    """A copy with one thing done at `path`: `put` a value there, `drop` it, `copy` the part at `other` to it, `wrap` it, write it as
    text (`retype`), add an unknown key (`add`), or repeat it in its list (`repeat`)."""
    whole = {"": deepcopy(document)}
    full: Path = ("", *path)
    parent, last = _at(whole, full[:-1]), full[-1]
    part = parent[last]
    if how == "put":
        parent[last] = deepcopy(value)
    elif how == "drop" and path:
        del parent[last]
    elif how == "copy":
        parent[last] = deepcopy(_at(document, other))
    elif how == "wrap":
        parent[last] = [part]
    elif how == "retype":
        parent[last] = str(part)[:1000] if not isinstance(part, str) else [*part[:50]]
    elif how == "add" and isinstance(part, dict):
        part["unknown"] = deepcopy(value)
    elif how == "repeat" and isinstance(parent, list):
        parent.append(part)
    return whole[""]


_HOW = ("put", "put", "put", "drop", "copy", "wrap", "retype", "add", "repeat")


@st.composite
def broken(draw: st.DrawFn, document: Any) -> Any:
    """A valid document with one to three changes at random places."""
    for _ in range(draw(st.integers(1, 3))):
        places = list(paths_in(document))
        value = draw(st.sampled_from(HOSTILE) | st.text(max_size=12) | st.integers() | st.floats())
        path, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        document = changed(document, path, draw(st.sampled_from(_HOW)), value, other)
    return document


def as_json(document: Any) -> bytes:
    """JSON with what JSON forbids left in: NaN, lone surrogates, integers of any length."""
    return _raw(json.dumps(document), '"').encode()


def as_yaml(document: Any) -> bytes:
    """YAML in block style, aliases written out."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return _raw(yaml.dump(document, Dumper=Plain, allow_unicode=False), "'").encode("utf-8", "surrogatepass")


def _raw(text: str, quote: str) -> str:
    for name, value in RAW.items():
        text = text.replace(f"{quote}{name}{quote}", value)
    return text


def broken_json(document: Any) -> st.SearchStrategy[bytes]:
    """The bytes of a broken document, or of one that is cut or has bytes changed, or no document at all."""
    return st.one_of(broken(document).map(as_json), broken(document).map(as_json), damaged(as_json(document)))


def broken_yaml(document: Any) -> st.SearchStrategy[bytes]:
    """As `broken_json`, as YAML in block style or as the JSON that YAML can be."""
    return st.one_of(broken(document).map(as_yaml), broken(document).map(as_json), damaged(as_yaml(document)))


@st.composite
def damaged(draw: st.DrawFn, raw: bytes, most: int = 4) -> bytes:
    """Bytes with a few changes: overwritten, cut out, put in twice, cut short; or other bytes altogether."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(raw)))
        how = draw(st.sampled_from(("over", "out", "twice", "short", "in")))
        length = draw(st.integers(1, 64))
        if how == "over":
            piece = draw(st.binary(min_size=1, max_size=8))
            raw = raw[:at] + piece + raw[at + len(piece) :]
        elif how == "out":
            raw = raw[:at] + raw[at + length :]
        elif how == "twice":
            raw = raw[: at + length] + raw[at:]
        elif how == "short":
            raw = raw[:at]
        else:
            raw = (
                raw[:at]
                + draw(st.sampled_from((b"[" * 500, b"{" * 500, b"\0", b"\xff\xfe", b"&a *a ", b"<<: ", b"- " * 300, b"#")))
                + raw[at:]
            )
    return raw

"""Fetching gives the very file, from whichever source has it, or says for every file what is wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from loopback import Answer, Request, ranged, serving

from envlock.errors import DiskFull, Exit, Finding, Problems, Unreachable, exit_code_of
from envlock.fetch import Source, Wanted, fetch_all
from envlock.pipconfig import PipSettings
from envlock.progress import Silent
from envlock.secrecy import redact, redact_text
from envlock.store import Store
from envlock.transport import Patience, Transport

BODY = bytes(range(256)) * 20_000
QUICK = Patience(attempts=3, pause=0.01, connect=5, read=5)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def wanted(*sources: Source, body: bytes = BODY, what: str = "file.whl") -> Wanted:
    return Wanted(what, sha256(body), len(body), lambda: sources)


def fetch(store: Store, *files: Wanted, settings: PipSettings | None = None) -> None:
    fetch_all(files, store, Silent(), transport=Transport(QUICK, {}, settings or PipSettings()))


def problems(store: Store, *files: Wanted, settings: PipSettings | None = None) -> tuple[Finding, ...]:
    with pytest.raises(Problems) as caught:
        fetch(store, *files, settings=settings)
    assert exit_code_of(caught.value) == Exit.FILE
    assert not any(path.is_file() for path in (store.root / "work").glob("*/*"))
    return caught.value.findings


def test_files_arrive_in_parallel_and_are_kept(store: Store) -> None:
    bodies = {f"/{n}": os.urandom(1000 + n) for n in range(30)}
    with serving(dict(bodies)) as server:
        files = [wanted(server.url + path, body=body, what=path) for path, body in bodies.items()]
        got = fetch_all(files, store, Silent(), transport=Transport(QUICK, {}, PipSettings()))
        assert [(f.sha256, f.size) for f in got] == [(sha256(body), len(body)) for body in bodies.values()]
        fetch(store, *files)
        assert len(server.requests) == 30  # the second time nothing is asked
    assert store.verify() == ()


def test_what_the_store_has_is_not_looked_for(store: Store) -> None:
    with store.incoming() as blob:
        blob.write(BODY)

    def no_source() -> Iterable[Source]:
        raise AssertionError

    fetch(store, Wanted("file.whl", sha256(BODY), len(BODY), no_source))


def test_the_same_file_wanted_twice_is_fetched_once(store: Store) -> None:
    with serving({"/a": BODY}) as server:
        fetch(store, wanted(server.url + "/a"), wanted(server.url + "/a"))
        assert server.paths == ["/a"]


def test_a_file_of_unknown_hash_is_hashed_here(store: Store) -> None:
    with serving({"/a": BODY}) as server:
        file = Wanted("file.whl", None, None, lambda: [server.url + "/a"])
        (got,) = fetch_all([file], store, Silent(), transport=Transport(QUICK, {}, PipSettings()))
    assert (got.sha256, got.size) == (sha256(BODY), len(BODY))


def test_a_local_folder_and_a_file_url_are_sources(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a b.whl"
    path.write_bytes(BODY)
    fetch(store, wanted(path))
    store.discard(sha256(BODY))
    fetch(store, wanted(path.as_uri()))
    assert store.has(sha256(BODY))


def test_a_broken_connection_is_resumed_where_it_broke(store: Store) -> None:
    def break_twice(request: Request) -> Answer:
        return ranged(BODY, request, cut=2_000_000 if request.count < 3 else None)

    with serving({"/a": break_twice}) as server:
        fetch(store, wanted(server.url + "/a"))
        asked = [request.headers.get("range", "") for request in server.requests]
    assert asked == ["", "bytes=2000000-", "bytes=4000000-"]


def test_a_server_without_ranges_starts_over(store: Store) -> None:
    with serving({"/a": lambda request: Answer(BODY, cut=1000 if request.count < 3 else None)}) as server:
        fetch(store, wanted(server.url + "/a"))
        assert len(server.requests) == 3


def test_a_part_that_does_not_fit_the_first_is_fetched_from_the_start(store: Store) -> None:
    def changes_between(request: Request) -> Answer:
        return Answer(b"x" * len(BODY), cut=3000) if request.count == 1 else ranged(BODY, request)

    with serving({"/a": changes_between}) as server:
        fetch(store, wanted(server.url + "/a"))
        assert len(server.requests) == 3


def test_a_server_that_is_busy_is_asked_again(store: Store) -> None:
    busy = Answer(status=503, headers={"Retry-After": "0"})
    with serving({"/a": lambda request: busy if request.count < 3 else Answer(BODY)}) as server:
        fetch(store, wanted(server.url + "/a"))


def test_the_next_source_is_tried_when_one_fails(store: Store, tmp_path: Path) -> None:
    with serving({"/wrong": b"x" * len(BODY), "/right": BODY}) as server:
        fetch(store, wanted(tmp_path / "absent", server.url + "/gone", server.url + "/wrong", server.url + "/right"))


@pytest.mark.parametrize(
    ("answer", "id_", "says", "requests"),
    [
        (Answer(b"x" * len(BODY)), "file-changed-upstream", "its size is the right one", 1),
        (Answer(BODY[:-1]), "download-damaged", "5119999 bytes instead of 5120000", 2),
        (Answer(BODY + b"x"), "download-damaged", "more than 5120000 bytes", 2),
        (Answer(b"<html>", headers={"Content-Type": "text/html"}), "download-damaged", "log-in page", 2),
        (Answer(BODY, cut=1000), "unreachable", "the connection broke", 3),
        (Answer(status=404), "file-gone", "answers 404", 1),
        (Answer(status=410), "file-gone", "answers 410", 1),
        (Answer(status=401), "access-denied", "answers 401", 1),
        (Answer(status=403), "access-denied", "answers 403", 1),
        (Answer(status=429), "rate-limited", "answers 429", 3),
        (Answer(status=500), "unreachable", "answers 500", 3),
    ],
)
def test_each_fault_is_named(store: Store, answer: Answer, id_: str, says: str, requests: int) -> None:
    with serving({"/a": answer}) as server:
        (finding,) = problems(store, wanted(server.url + "/a"))
        assert len(server.requests) == requests
    assert finding.id == id_
    assert "file.whl" in finding.what
    assert says in finding.why
    assert finding.where == server.url + "/a"
    assert finding.hint


def test_all_faults_come_at_once_and_what_was_had_is_kept(store: Store) -> None:
    with serving({"/good": BODY, "/changed": b"y" * len(BODY)}) as server:
        bad = wanted(server.url + "/changed", body=BODY[::-1], what="changed.whl")
        gone = wanted(server.url + "/gone", body=b"gone", what="gone.whl")
        found = problems(store, bad, wanted(server.url + "/good"), gone)
    assert [(finding.id, finding.what.split()[0]) for finding in found] == [
        ("file-changed-upstream", "changed.whl"),
        ("file-gone", "gone.whl"),
    ]
    assert store.has(sha256(BODY))


def test_a_file_that_may_be_at_an_unreachable_source_is_not_called_gone(store: Store) -> None:
    with serving({}) as server:
        (finding,) = problems(store, wanted(server.url + "/a", "http://127.0.0.1:9/a"))
    assert finding.id == "unreachable"
    assert "refuses the connection" in finding.why
    assert "does not have it" in finding.why


def test_sources_that_cannot_be_listed_are_named(store: Store) -> None:
    def sources() -> Iterable[Source]:
        raise Unreachable("the index cannot be reached", hint="use a mirror")

    (finding,) = problems(store, Wanted("file.whl", sha256(BODY), len(BODY), sources))
    assert (finding.id, finding.why, finding.hint) == ("unreachable", "the index cannot be reached", "use a mirror")


def test_a_host_that_is_down_is_not_asked_again_and_again(store: Store) -> None:
    with serving({"/a": Answer(status=500)}) as server:
        files = [wanted(server.url + "/a", body=bytes([n]), what=f"{n}") for n in range(40)]
        assert len(problems(store, *files)) == 40
        assert len(server.requests) < 40 + 8 * QUICK.attempts


def test_secrets_in_urls_are_sent_and_never_shown(store: Store) -> None:
    with serving(
        {"/a": lambda request: Answer(BODY if "authorization" in request.headers else b"", 403 if request.count > 1 else 200)}
    ) as server:
        url = server.url.replace("http://", "http://user:pass-w0rd@") + "/a?X-Signature=t0ken"
        fetch(store, wanted(url))
        store.discard(sha256(BODY))
        (finding,) = problems(store, wanted(url))
    shown = " ".join([finding.what, finding.where, finding.why, finding.hint])
    assert "127.0.0.1" in shown
    assert "pass-w0rd" not in shown
    assert "t0ken" not in shown


def test_secrets_are_taken_out_of_other_programs_text() -> None:
    assert redact("https://u:p@host:8/simple/x.whl?token=1#frag") == "https://host:8/simple/x.whl"
    assert redact_text("error: `https://u:p%40@host/a/b?tok=1` and http://host/c") == "error: `https://host/a/b` and http://host/c"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs openssl")
def test_an_untrusted_certificate_is_named_and_a_trusted_host_or_bundle_accepted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving({"/a": BODY}, tls) as server:
        file = wanted(server.url + "/a")
        (finding,) = problems(store, file)
        assert finding.id == "certificate-refused"
        assert "SSL_CERT_FILE" in finding.hint
        for settings in (PipSettings(cert=str(certificate)), PipSettings(trusted_hosts=("127.0.0.1",))):
            fetch(store, file, settings=settings)
            store.discard(sha256(BODY))
        (finding,) = problems(store, file, settings=PipSettings(cert=str(tmp_path / "absent.pem")))
        assert "CA bundle cannot be read" in finding.why


def test_too_little_space_is_said_before_anything_is_asked(store: Store) -> None:
    with serving({"/a": BODY}) as server:
        with pytest.raises(DiskFull):
            fetch(store, Wanted("huge.whl", sha256(BODY), 10**18, lambda: [server.url + "/a"]))
        assert server.requests == []


FETCHER = """
import sys
from pathlib import Path
from envlock.fetch import Wanted, fetch_all
from envlock.progress import Silent
from envlock.store import Store
root, *files = sys.argv[1:]
wanted = [Wanted(url, sha256, int(size), lambda url=url: [url]) for url, sha256, size in (file.split(",") for file in files)]
fetch_all(wanted, Store(Path(root)), Silent(), workers=1)
"""


def start(store: Store, **files: bytes) -> subprocess.Popen[bytes]:
    """Fetch in a process of its own; files by URL."""
    arguments = [f"{url},{sha256(body)},{len(body)}" for url, body in files.items()]
    return subprocess.Popen([sys.executable, "-c", FETCHER, str(store.root), *arguments], stderr=subprocess.PIPE)


def test_two_processes_fetch_one_file_at_once(store: Store) -> None:
    with serving({"/a": BODY}) as server:
        running = [start(store, **{server.url + "/a": BODY}) for _ in range(3)]
        assert [(process.communicate()[1], process.returncode) for process in running] == [(b"", 0)] * 3
    assert store.verify() == ()
    assert store.usage().blobs == 1
    assert store.usage().unfinished == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_ends_at_once_and_the_next_goes_on(store: Store, how: signal.Signals) -> None:
    asked, silent = threading.Event(), threading.Event()

    def falls_silent(request: Request) -> Answer:
        asked.set()
        silent.wait(30)
        return Answer(BODY[:1000])

    with serving({"/large": BODY, "/small": falls_silent}) as server:
        files = {server.url + "/large": BODY, server.url + "/small": BODY[:1000]}
        first = start(store, **files)
        assert asked.wait(30)
        first.send_signal(how)
        first.communicate(timeout=10)
        silent.set()
        assert first.returncode != 0
        second = start(store, **files)
        assert (second.communicate()[1], second.returncode) == (b"", 0)
        assert server.paths == ["/large", "/small", "/small"]
    assert store.usage().blobs == 2
    assert store.usage().unfinished == 0

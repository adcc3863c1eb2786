"""HTTP as envlock speaks it: the user's proxies, certificates and credentials honoured, every fault named, no secret shown."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import requests
import urllib3

from envlock import __version__
from envlock.errors import AccessDenied, CertificateRefused, FetchError, FileGone, RateLimited, Unreachable
from envlock.pipconfig import PipSettings, read_pip_settings
from envlock.secrecy import redact
from envlock.urls import split_url

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How hard to try: attempts for one file at one source without progress, first pause between them (doubled each time) and
    time-outs for connecting and between bytes, in seconds."""

    attempts: int = 5
    pause: float = 0.5
    connect: float = 15.0
    read: float = 60.0


class Fault(Exception):
    """One request that failed. `transient`: the same request may succeed in a moment, after `pause` seconds where the server said so."""

    def __init__(self, error: FetchError, *, transient: bool, pause: float | None = None) -> None:
        super().__init__(error.what)
        self.error = error
        self.transient = transient
        self.pause = pause


class Transport:
    """Sends GET requests; connections are kept open, one set for each thread."""

    def __init__(
        self, patience: Patience | None = None, environ: Mapping[str, str] = os.environ, settings: PipSettings | None = None
    ) -> None:
        self.patience = patience or Patience()
        self._settings = settings or read_pip_settings(environ)
        self._bundle = environ.get("SSL_CERT_FILE") or self._settings.cert
        self._threads = threading.local()
        if self._settings.trusted_hosts:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        """The response, its body not yet read. Raises `Fault` for whatever is not 200 or 206."""
        session = self._session()
        trusted = split_url(url).hostname in self._settings.trusted_hosts or _host(url) in self._settings.trusted_hosts
        try:
            response = session.get(
                url,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                stream=True,
                timeout=(self.patience.connect, max(self.patience.read, self._settings.timeout or 0)),
                verify=False if trusted else None,
            )
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise fault_of(error, url) from None
        if response.status_code not in (200, 206):
            response.close()
            raise fault_of_status(response, url)
        return response

    def text(self, url: str, accept: str) -> tuple[str, requests.Response]:
        """A small document and its response, tried again after transient faults. Raises `FetchError`."""
        attempt = 0
        while True:
            try:
                with self.get(url, {"Accept": accept, "Accept-Encoding": "gzip"}) as response:
                    return response.text, response
            except Fault as fault:
                attempt += 1
                if not fault.transient or attempt >= self.patience.attempts:
                    raise fault.error from None
                threading.Event().wait(self.pause(fault, attempt))
            except (OSError, urllib3.exceptions.HTTPError) as error:
                attempt += 1
                if attempt >= self.patience.attempts:
                    raise fault_of(error, url).error from None
                threading.Event().wait(self.patience.pause)

    def pause(self, fault: Fault, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th failure in a row."""
        own = self.patience.pause * 2.0 ** (attempt - 1)
        return min(LONGEST_PAUSE, own if fault.pause is None else max(own, fault.pause))

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._threads, "session", None)
        if session is None:
            session = requests.Session()
            session.headers["User-Agent"] = f"envlock/{__version__}"
            if self._bundle:
                session.verify = self._bundle
            if self._settings.client_cert:
                session.cert = self._settings.client_cert
            if self._settings.proxy:
                session.proxies = {"http": self._settings.proxy, "https": self._settings.proxy}
            self._threads.session = session
        return session


def fault_of(error: Exception, url: str) -> Fault:
    """An exception of requests in our words; the exception's own text is never shown, since it repeats the URL."""
    where = redact(url)
    host = _host(url)
    reason = _reason(error)
    if isinstance(error, requests.exceptions.ProxyError) or isinstance(reason, urllib3.exceptions.ProxyError):
        hint = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
        return Fault(Unreachable(f"the proxy on the way to {host} does not answer", where=where, hint=hint), transient=True)
    if isinstance(error, requests.exceptions.SSLError) or isinstance(reason, urllib3.exceptions.SSLError):
        why = "the connection is not signed by an authority that this machine trusts"
        hint = "name your organisation's CA bundle in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
        return Fault(CertificateRefused(f"the certificate of {host} is refused", where=where, why=why, hint=hint), transient=False)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        hint = "correct SSL_CERT_FILE, REQUESTS_CA_BUNDLE or pip's `cert` setting"
        return Fault(CertificateRefused("the CA bundle cannot be read", where=where, hint=hint), transient=False)
    hint = "check the network, the proxy variables and the index settings, then run it again"
    if isinstance(error, ValueError):
        return Fault(
            Unreachable(f"{where} is not a URL that can be fetched", where=where, hint="correct the index settings"), transient=False
        )
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return Fault(Unreachable(f"{host} redirects in circles", where=where, hint=hint), transient=False)
    if isinstance(reason, urllib3.exceptions.NewConnectionError):
        unknown = isinstance(reason, urllib3.exceptions.NameResolutionError)
        why = "its name is not known" if unknown else "it refuses the connection, or there is no route to it"
        return Fault(Unreachable(f"{host} cannot be reached", where=where, why=why, hint=hint), transient=True)
    if isinstance(error, requests.exceptions.Timeout) or isinstance(reason, urllib3.exceptions.TimeoutError):
        return Fault(Unreachable(f"{host} does not answer in time", where=where, hint=hint), transient=True)
    return Fault(Unreachable(f"{host} cannot be reached", where=where, why="the connection broke", hint=hint), transient=True)


def _reason(error: Exception) -> object:
    """The innermost cause that urllib3 gives."""
    inner: object = error.args[0] if error.args else None
    return getattr(inner, "reason", inner)


def fault_of_status(response: requests.Response, url: str) -> Fault:
    """An answer that is no success in our words."""
    status, host, where = response.status_code, _host(url), redact(url)
    why = f"the server answers {status}"
    if status in (401, 403, 407):
        hint = "put credentials for it into ~/.netrc or into the index's URL"
        return Fault(AccessDenied(f"{host} refuses access", where=where, why=why, hint=hint), transient=False)
    if status in (404, 410):
        return Fault(FileGone(f"{host} does not have it", where=where, why=why), transient=False)
    if status == 429:
        error: FetchError = RateLimited(f"{host} limits how often it may be asked", where=where, why=why, hint="wait, or use a mirror")
    else:
        error = Unreachable(f"{host} cannot serve it now", where=where, why=why, hint="try again later")
    after = response.headers.get("Retry-After", "")
    return Fault(error, transient=status in _RETRIED, pause=float(after) if after.isdigit() else None)


def _host(url: str) -> str:
    return split_url(url).netloc.rpartition("@")[2] or redact(url)

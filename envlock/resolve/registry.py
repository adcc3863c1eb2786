"""The registry API (OCI distribution specification 1.1): manifests and blobs of base images, with Docker's ways to log in.

Digests are taken over the bytes as they came; JSON is never written again. Tokens follow distribution.github.io, "Token
authentication specification".
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import requests
import urllib3

from envlock.errors import (
    AccessDenied,
    BaseGone,
    DownloadDamaged,
    FetchError,
    FileGone,
    RateLimited,
    RegistryAuth,
    RegistryRateLimited,
    Unreachable,
)
from envlock.image import digest_of
from envlock.progress import Progress
from envlock.resolve.credentials import Credentials, find_credentials
from envlock.resolve.manifests import ACCEPTED
from envlock.resolve.reference import DOCKER_HUB, ImageReference
from envlock.secrecy import redact
from envlock.transport import Fault, Transport, fault_of
from envlock.urls import split_url

_CLIENT = "envlock"


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or index as it came: its bytes and their digest."""

    raw: bytes
    digest: str


class Repository(Transport):
    """One repository in a registry. As a `Transport` it can be given to `fetch_all` for the repository's blobs."""

    actions = "pull"
    """What a token is asked for, as the token specification has it."""

    def __init__(self, reference: ImageReference, progress: Progress, like: Transport | None = None) -> None:
        super().__init__(like.patience if like else None)
        self.reference = reference
        self._progress = progress
        self._mutex = threading.Lock()
        self._origin: str | None = None
        self._authorization: dict[str, str] = {}
        self._challenge = ""

    def manifest(self, reference: str) -> Document:
        """The document at a tag or digest. Raises `BaseGone`, `RegistryAuth`, `RegistryRateLimited`, `Unreachable`, `DownloadDamaged`."""
        answer = self._told(f"manifests/{reference}", ", ".join(ACCEPTED))
        document = Document(answer.content, digest_of(answer.content))
        said = answer.headers.get("Docker-Content-Digest")
        expected = reference if reference.startswith("sha256:") else said
        if expected and expected.startswith("sha256:") and expected != document.digest:
            why = f"its sha256 is {document.digest}, not {expected}"
            hint = "run it again; something on the way to the registry changes what it sends"
            raise DownloadDamaged(f"the manifest of {self.reference} arrived damaged", where=self.reference.host, why=why, hint=hint)
        return document

    def blob_url(self, digest: str) -> str:
        """Where the registry serves a blob."""
        return self._url(f"blobs/{digest}")

    def explained(self, error: FetchError) -> FetchError:
        """A fault of a request in the registry's terms."""
        name, host = str(self.reference), self.reference.registry
        if isinstance(error, FileGone):
            hint = (
                "registries delete tags (NVIDIA's go six months after the end of their CUDA release): choose one that exists,"
                " or take the base from a mirror or an archive, `base: {archive: base.tar}`"
            )
            return BaseGone(f"the registry does not have {name}", where=error.where, why=error.why, hint=hint)
        if isinstance(error, RateLimited):
            login = " or log in with `docker login`" if self._is_anonymous else ""
            hint = f"wait an hour{login}, or use a mirror of the image"
            return RegistryRateLimited(f"{host} limits how often it may be asked", where=error.where, why=error.why, hint=hint)
        if isinstance(error, AccessDenied):
            login = "docker login" if host == DOCKER_HUB else f"docker login {host}"
            hint = f"check the name, and log in with `{login}` if the image is private"
            return RegistryAuth(f"{host} refuses {name}: it is private, or it does not exist", where=error.where, why=error.why, hint=hint)
        return error

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        """As `Transport.get`, with the repository's token; a token that ran out is replaced once."""
        if not self._is_ours(url):
            return super().get(url, headers)
        token = self._authorization or self._log_in(stale={})
        try:
            return super().get(url, {**(headers or {}), **token})
        except Fault as fault:
            if not isinstance(fault.error, AccessDenied) or not token:
                raise
        return super().get(url, {**(headers or {}), **self._log_in(stale=token)})

    @property
    def _is_anonymous(self) -> bool:
        return find_credentials(self.reference.registry, lambda _: None) is None

    def _told(self, path: str, accept: str) -> requests.Response:
        try:
            return self.text(self._url(path), accept)[1]
        except FetchError as error:
            raise self.explained(error) from None

    def _is_ours(self, url: str) -> bool:
        return split_url(url).netloc == self.reference.host

    def _url(self, path: str) -> str:
        return f"{self._reached()}/v2/{self.reference.repository}/{path}"

    def _reached(self) -> str:
        """`https://HOST`; or `http://HOST`, on loopback alone and only where no TLS is spoken."""
        with self._mutex:
            if self._origin is None:
                try:
                    self._origin = self._knock("https")
                except FetchError as error:
                    if not self.reference.is_loopback:
                        raise self.explained(error) from None
                    try:
                        self._origin = self._knock("http")
                    except FetchError as second:
                        raise self.explained(second) from None
            return self._origin

    def _knock(self, scheme: str) -> str:
        """Ask for the API's root, and keep what the registry wants to see. Raises `FetchError`."""
        origin = f"{scheme}://{self.reference.host}"
        try:
            with self._session().get(f"{origin}/v2/", timeout=(self.patience.connect, self.patience.read), auth=_no_auth) as answer:
                if answer.status_code == 429:
                    raise RateLimited(f"{self.reference.host} limits how often it may be asked", where=origin, why="the server answers 429")
                if answer.status_code >= 500:
                    why = f"the server answers {answer.status_code}"
                    raise Unreachable(f"{self.reference.host} cannot serve it now", where=origin, why=why, hint="try again later")
                self._challenge = answer.headers.get("WWW-Authenticate", "") if answer.status_code == 401 else ""
        except (requests.RequestException, OSError, urllib3.exceptions.HTTPError) as error:
            raise fault_of(error, f"{origin}/v2/").error from None
        return origin

    def _log_in(self, stale: Mapping[str, str]) -> dict[str, str]:
        """The header that lets this client read the repository; empty where none is needed. Raises `Fault`."""
        self._reached()
        with self._mutex:
            if self._authorization == stale and self._challenge:
                credentials = find_credentials(self.reference.registry, self._progress.say)
                scheme, _, rest = self._challenge.partition(" ")
                if scheme.lower() == "basic":
                    self._authorization = _basic(credentials)
                elif scheme.lower() == "bearer":
                    self._authorization = {"Authorization": f"Bearer {self._token(_parameters(rest), credentials)}"}
            return self._authorization

    def _token(self, challenge: Mapping[str, str], credentials: Credentials | None) -> str:
        realm = challenge.get("realm", "")
        host = split_url(realm).netloc
        if split_url(realm).scheme != "https" and not (self.reference.is_loopback and split_url(realm).scheme == "http"):
            why = f"it sends clients to {redact(realm) or 'nowhere'} to log in, without TLS"
            raise Fault(AccessDenied(f"{self.reference.registry} cannot be trusted with credentials", why=why), transient=False)
        wanted = {"service": challenge.get("service", ""), "scope": f"repository:{self.reference.repository}:{self.actions}"}
        wanted = {key: value for key, value in wanted.items() if value}
        session, timeout = self._session(), (self.patience.connect, self.patience.read)
        try:
            if credentials is not None and credentials.identity_token:
                form = {**wanted, "grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": _CLIENT}
                answer = session.post(realm, data=form, timeout=timeout, auth=_no_auth)
            else:
                query = realm + ("&" if "?" in realm else "?") + urlencode(wanted)
                answer = session.get(query, headers=_basic(credentials), timeout=timeout, auth=_no_auth)
            with answer:
                if answer.status_code == 200:
                    document = answer.json()
                    return str(document.get("token") or document["access_token"])
        except (requests.RequestException, OSError, urllib3.exceptions.HTTPError) as error:
            raise fault_of(error, realm) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Fault(
                Unreachable(f"{host} gives no token", where=redact(realm), why="its answer cannot be read"), transient=False
            ) from None
        why = f"{host} answers {answer.status_code}"
        if answer.status_code == 429:
            raise Fault(RateLimited(f"{host} limits how often it may be asked", where=redact(realm), why=why), transient=False)
        if answer.status_code >= 500:
            raise Fault(Unreachable(f"{host} gives no token", where=redact(realm), why=why, hint="try again later"), transient=True)
        refused = "the login is refused" if credentials else "it needs a login"
        raise Fault(AccessDenied(f"{host} gives no token: {refused}", where=redact(realm), why=why), transient=False)


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps requests from putting ~/.netrc's password in the place of a registry's token."""
    return request


def _basic(credentials: Credentials | None) -> dict[str, str]:
    if credentials is None or not credentials.user:
        return {}
    pair = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def _parameters(text: str) -> dict[str, str]:
    """`realm="…",service="…"` of a challenge (RFC 9110, 11.2)."""
    return {key.lower(): quoted or plain for key, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', text)}

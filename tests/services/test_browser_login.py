"""Logins of browsers at the router: the page, the cookie, and attempts to get one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from penstock.broker.http_server.guard import HttpGuard
from penstock.core.access.access_control import AccessControl
from penstock.core.access.browser_logins import BROWSER_LOGINS_FILE
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.principal import PRINCIPAL_HEADER
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.services.api.asgi import application
from penstock.services.api.login import LoginRoutes
from penstock.services.host.login_links import new_login_link
from penstock.services.host.process import listen
from penstock.services.host.up import login_lines
from penstock.services.http_server import HttpServer, api_error
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from tests.harness.access_kit import AccessFolderKit

RULES = '[principals]\n"user:alice" = ["viewer"]\n'
FORM = {"content-type": "application/x-www-form-urlencoded"}


# One for all, because a context of TLS takes most of the time of a request.
HTTP = httpx.Client(verify=False)


def sent(
    method: str,
    url: str,
    content: str | None = None,
    headers: Mapping[str, str] | Mapping[str, bytes] | None = None,
) -> httpx.Response:
    """Send a request without the cookies of earlier answers."""
    HTTP.cookies.clear()
    return HTTP.request(method, url, content=content, headers=headers)


class LoginServer:
    """A router's pages and status routes on a port, with access configured."""

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        self.kit = AccessFolderKit(folder / "access", rules)
        app = application(LoginRoutes().routes(), access=self.kit.control, accepts_sessions=True)
        listener = listen(HostPort("127.0.0.1", 0), "--http")
        self.server = HttpServer(app, listener, HttpGuard(error_body=api_error))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.cookie = f"penstock-{self.server.port}"
        self.options = PenstockOptions(data_dir=folder)

    def link(self, principal: str = "token:operator") -> str:
        link = new_login_link(self.options, self.url, SystemClock(), principal)
        assert link is not None
        return link

    def code(self) -> str:
        return self.link().partition("code=")[2]

    def post(self, code: str, **headers: str) -> httpx.Response:
        given = {**FORM, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return sent("POST", f"{self.url}/login", content=f"code={code}", headers=given)

    def session(self) -> str:
        answer = self.post(self.code(), origin=self.url)
        assert answer.status_code == 303
        return answer.cookies[self.cookie]

    def ask(self, session: str, method: str = "GET", path: str = "/status", **headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given["cookie"] = f"{self.cookie}={session}"
        return sent(method, f"{self.url}{path}", headers=given).status_code


@pytest.fixture(scope="module", autouse=True)
def closed_connections() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginServer]:
    made = LoginServer(tmp_path_factory.mktemp("login"))
    yield made
    made.server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LoginServer]:
    made = LoginServer(tmp_path)
    yield made
    made.server.stop()


def test_a_browser_can_ask_whose_rights_it_has(server: LoginServer) -> None:
    me = f"{server.url}/penstock/v1/me"
    refused = sent("GET", me)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer, Basic")
    # A browser would ask for a password before the page can show how to log in.
    by_script = sent("GET", me, headers={"x-requested-with": "XMLHttpRequest"})
    assert by_script.headers["www-authenticate"] == "Bearer"
    cookie = f"{server.cookie}={server.session()}"
    assert sent("GET", me, headers={"cookie": cookie}).json() == {
        "principal": "token:operator",
        "kind": "token",
        "name": "operator",
        "isSession": True,
        "isLoginNeeded": True,
    }


def test_a_browser_logs_in_with_the_button_of_a_link_and_out_again(server: LoginServer) -> None:
    with httpx.Client(verify=False) as browser:
        assert browser.get(f"{server.url}/status").status_code == 401
        link = server.link()
        page = browser.get(link)
        assert page.status_code == 200
        assert "token:operator" in page.text
        assert browser.get(link).status_code == 200, "a preview of the link does not use it"
        assert "set-cookie" not in page.headers
        form = re.search(
            r'<form method="post" action="(.*?)"><input type="hidden" name="code" value="(.*?)"',
            page.text,
        )
        assert form is not None
        target = httpx.URL(link).join(form[1])
        own = {"origin": server.url, "sec-fetch-site": "same-origin"}
        answer = browser.post(target, data={"code": form[2]}, headers=own)
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        assert browser.get(f"{server.url}/status").status_code == 200
        assert "token:operator" in browser.get(f"{server.url}/login").text
        session = browser.cookies[server.cookie]
        out = browser.post(f"{server.url}/logout", headers=own)
        assert (out.status_code, out.headers["location"]) == (303, "login")
        assert server.cookie not in browser.cookies
        assert browser.get(f"{server.url}/status").status_code == 401
    assert server.ask(session) == 401, "the session has ended, not only the cookie"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(server: LoginServer) -> None:
    cookie = server.post(server.code(), origin=server.url).headers["set-cookie"]
    name, *attributes = cookie.split("; ")
    assert re.fullmatch(rf"{server.cookie}=[A-Za-z0-9_-]{{43}}", name)
    # Without a path: that of the page, so that a proxy may serve the port below a path.
    assert attributes == ["Max-Age=43200", "HttpOnly", "SameSite=Strict"]


def test_the_cookie_of_a_browser_that_uses_tls_is_secure(own_server: LoginServer) -> None:
    host = f"localhost:{own_server.server.port}"
    answer = own_server.post(own_server.code(), origin=f"https://{host}", host=host)
    assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("path", ["/login", "/login?code=CODE", "/login?code=wrong"])
def test_the_pages_need_no_script_and_load_nothing(own_server: LoginServer, path: str) -> None:
    page = sent("GET", own_server.url + path.replace("CODE", own_server.code()))
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert policy.endswith("form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    assert not re.search(r"<script|<link|<img|src=| on\w+=|https?:", page.text)


def test_a_code_in_a_page_cannot_become_markup(own_server: LoginServer) -> None:
    page = sent("GET", f'{own_server.url}/login?code="><script>alert(1)</script>')
    assert "alert" not in page.text


def test_a_code_is_used_once_and_expires(server: LoginServer, own_server: LoginServer) -> None:
    code = server.code()
    assert server.post(code, origin=server.url).status_code == 303
    used = server.post(code, origin=server.url)
    assert used.status_code == 403
    assert "set-cookie" not in used.headers
    assert "penstock login --link" in used.text
    assert own_server.post(server.code(), origin=own_server.url).status_code == 403
    file = own_server.kit.folder / BROWSER_LOGINS_FILE
    code = own_server.code()
    file.write_text(re.sub(r'"expires":\d+', '"expires":1', file.read_text()))
    assert own_server.post(code, origin=own_server.url).status_code == 403


def test_a_code_of_a_user_that_the_router_has_not_read_yet_is_not_used_up(
    own_server: LoginServer,
) -> None:
    nothing = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA"
    file = CredentialFile(own_server.kit.folder / "credentials.json", SystemClock())
    file.add_user("carol", nothing, ("viewer",))
    code = own_server.link("user:carol").partition("code=")[2]
    early = own_server.post(code, origin=own_server.url)
    assert early.status_code == 503
    assert "set-cookie" not in early.headers
    assert "user:carol" in early.text
    assert f'value="{code}"' in early.text
    own_server.kit.control.refresh()
    assert own_server.post(code, origin=own_server.url).status_code == 303
    assert own_server.post(code, origin=own_server.url).status_code == 403


def test_wrong_codes_do_not_keep_a_right_one_out(server: LoginServer) -> None:
    """Any web page can send them from the browser of a user."""
    right = server.code()
    for number in range(30):
        wrong = f"{number:043d}"
        page = sent("GET", f"{server.url}/login?code={wrong}")
        assert (page.status_code, server.post(wrong).status_code) == (403, 403)
    assert server.post(right, origin=server.url).status_code == 303


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "https://127.0.0.1.evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"content_type": "text/plain"}, 400),
        ({"content_type": "multipart/form-data; boundary=x"}, 400),
    ],
    ids=str,
)
def test_no_other_page_uses_a_code(
    server: LoginServer, headers: dict[str, str], status: int
) -> None:
    code = server.code()
    answer = server.post(code, **headers)
    assert answer.status_code == status
    assert "set-cookie" not in answer.headers
    assert server.post(code, origin=server.url).status_code == 303


@pytest.mark.parametrize(
    "body", ["", "code", "code=a&code=b", "code=a&b=c&d=e", "code=%ff%", "x=y"]
)
def test_a_wrong_form_is_refused(server: LoginServer, body: str) -> None:
    given = {**FORM, "origin": server.url}
    assert sent("POST", f"{server.url}/login", content=body, headers=given).status_code in {
        400,
        403,
    }
    large = sent("POST", f"{server.url}/login", content="code=" + "a" * 2_000, headers=given)
    assert large.status_code == 413


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)
def test_a_session_does_not_count_for_other_pages(
    server: LoginServer, method: str, headers: dict[str, str]
) -> None:
    session = server.session()
    assert server.ask(session, method, **headers) == 403
    assert server.ask(session, "POST", "/logout", **headers) == 403
    assert server.ask(session) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_change_must_prove_its_page(server: LoginServer, method: str) -> None:
    session = server.session()
    assert server.ask(session, method) == 403
    # 405: the route exists, and only for other methods.
    assert server.ask(session, method, origin=server.url) == 405
    assert server.ask(session, method, sec_fetch_site="same-origin") == 405


def test_a_web_socket_must_prove_its_page(server: LoginServer) -> None:
    session = server.session()
    upgrade = {"upgrade": "websocket", "connection": "Upgrade"}
    assert server.ask(session, **upgrade) == 403
    assert server.ask(session, **upgrade, origin="http://127.0.0.1:1") == 403
    assert server.ask(session, **upgrade, origin=server.url) == 200, "there is none: plain HTTP"


def test_a_logout_without_proof_ends_nothing(server: LoginServer) -> None:
    session = server.session()
    assert server.ask(session, "POST", "/logout") == 303
    assert server.ask(session) == 200


def test_a_page_that_took_over_a_name_gets_nothing(server: LoginServer) -> None:
    assert server.ask(server.session(), host="evil.example") == 403


@pytest.mark.parametrize(
    "cookie",
    [
        "{name}={other}",
        "{name}={own}; {name}={other}",
        "{name}={other}; {name}={own}",
        "{name}=",
        "{name}x={own}",
        "x{name}={own}",
        "penstock={own}",
        "{name}={own}x",
        "{name}=\x80",
    ],
)
def test_a_cookie_that_is_not_exactly_the_session_is_nothing(
    server: LoginServer, own_server: LoginServer, cookie: str
) -> None:
    texts = {"name": server.cookie, "own": server.session(), "other": own_server.session()}
    given = {"cookie": cookie.format(**texts).encode("latin-1")}
    assert sent("GET", f"{server.url}/status", headers=given).status_code == 401


def test_a_session_cannot_act_for_others(server: LoginServer) -> None:
    given = {PRINCIPAL_HEADER: '{"id":"owner:root"}', "origin": server.url}
    assert server.ask(server.session(), **given) == 403


def test_a_header_with_a_credential_counts_instead_of_a_session(server: LoginServer) -> None:
    assert server.ask(server.session(), authorization="Bearer wrong") == 401


def test_changed_rules_end_the_rights_of_a_session(own_server: LoginServer) -> None:
    session = own_server.session()
    assert own_server.ask(session) == 200
    own_server.kit.control.refresh()
    token = own_server.kit.folder / "operator.token"
    token.write_text("penstock_operator_" + "b" * 43)
    own_server.kit.control.refresh()
    assert own_server.ask(session) == 401


def test_other_servers_of_the_installation_take_no_session(server: LoginServer) -> None:
    app = application(LoginRoutes().routes(), access=server.kit.control)
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    other = HttpServer(app, listener, HttpGuard(error_body=api_error))
    other.start()
    try:
        given = {"cookie": f"penstock-{other.port}={server.session()}"}
        url = f"http://127.0.0.1:{other.port}/status"
        assert sent("GET", url, headers=given).status_code == 401
    finally:
        other.stop()


# Without configuration, and the command line


def test_without_configuration_no_login_is_needed(tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access")
    (kit.folder / "access.toml").unlink()
    options = PenstockOptions(data_dir=tmp_path)
    assert new_login_link(options, "http://x", SystemClock()) is None
    assert list(login_lines(options, SystemClock(), shows_link=True)) == []
    access = AccessControl(kit.folder, SystemClock())
    app = application(LoginRoutes().routes(), access=access, accepts_sessions=True)
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    server = HttpServer(app, listener, HttpGuard(error_body=api_error))
    server.start()
    try:
        page = sent("GET", f"http://127.0.0.1:{server.port}/login?code=a")
        assert (page.status_code, "No login is needed" in page.text) == (200, True)
    finally:
        server.stop()


def test_only_a_terminal_gets_a_link(own_server: LoginServer) -> None:
    options, clock = own_server.options, SystemClock()
    assert list(login_lines(options, clock, shows_link=False)) == []
    (line,) = login_lines(options, clock, shows_link=True)
    assert re.fullmatch(
        r"  login   http://127.0.0.1:8888/login\?code=[\w-]{43}  \(one use, within 10 minutes\)",
        line,
    )
    (own_server.kit.folder / BROWSER_LOGINS_FILE).write_text("{")
    assert list(login_lines(options, clock, shows_link=True)) == ["  login   penstock login --link"]


def test_a_link_is_for_a_stored_user_or_token(server: LoginServer) -> None:
    with pytest.raises(NotFound, match="user:alice does not exist: penstock user list"):
        server.link("user:alice")
    for name in ("owner:root", "process:router", "certificate:a", "oidc:a", "task:t"):
        with pytest.raises(InvalidRequest, match="no stored credential"):
            server.link(name)

"""Links with which a browser logs in, for `penstock up` and `penstock login --link`."""

from __future__ import annotations

from penstock.core.access.access_folder import AccessFolder, AccessReader
from penstock.core.access.browser_logins import BrowserLogins
from penstock.core.access.operator_token import OPERATOR_ID
from penstock.core.access.principal import PrincipalKind, parse_principal
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.services.options.table import PenstockOptions

OPERATOR: str = f"{PrincipalKind.TOKEN}:{OPERATOR_ID}"


def new_login_link(
    options: PenstockOptions, url: str, clock: Clock, principal: str = OPERATOR
) -> str | None:
    """Return a link for one login; None: no login is needed, because nothing is configured.

    Args:
        options: The options of the server, with its folder of access.
        url: Address of its API.
        clock: For the expiry.
        principal: Id of the user or token whose rights the browser gets.

    Raises:
        InvalidRequest: The principal is not a user or a token, or a file of access is not valid.
        NotFound: There is no such user or token.
        Unavailable: A file cannot be read or written.
    """
    named = parse_principal(principal, place="--principal")
    if named.kind not in {PrincipalKind.USER, PrincipalKind.TOKEN}:
        raise InvalidRequest(
            f"{named} has no stored credential: name a user or a token, such as user:alice",
            place="--principal",
        )
    folder = AccessFolder(options.access_path)
    snapshot = AccessReader(folder).read(must_rest=False)
    if not snapshot.is_configured and options.token is None:
        return None
    found = snapshot.principals.get(named.id)
    if found is None:
        raise NotFound(f"{named} does not exist: penstock {named.kind} list shows all")
    code = BrowserLogins(folder.path, clock).new_link(found)
    return f"{url}/login?code={code}"

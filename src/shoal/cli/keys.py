"""`shoal keys`: certificates for tls:// connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.cli.group import as_json, main, option, tell
from shoal.transport.credentials import credentials

_folder = click.Path(file_okay=False, path_type=Path)
FOLDER = Path("keys")


@main.command("keys init", short_help="make an authority for the certificates of a cluster")
@click.argument("folder", type=_folder, default=FOLDER)
@option(
    "--name", default="", help="name of the authority, which errors tell; the time if not given"
)
@option("--days", type=click.IntRange(1, 36500), default=3650, help="days for which it counts")
@as_json
def init(folder: Path, name: str, days: int, as_json: bool) -> None:
    """Make an authority in FOLDER (keys): every certificate that it signs is trusted by the others.

    Keep its key, authority-key.pem, on one host that you trust; no process of a run needs it.

    \b
    shoal keys init
    shoal keys add node-0 node-1 node-2
    """
    from shoal.apps.keys import make_authority

    path = make_authority(folder, name, days)
    told = {"authority": str(path)}
    tell(as_json, told, lambda *_: click.echo(f"{path}: next, `shoal keys add NAME ...`"))


@main.command("keys add", short_help="make the certificate of a host or person, or renew it")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@option("--folder", type=_folder, default=FOLDER, help="folder of the authority")
@option("--days", type=click.IntRange(1, 36500), default=365, help="days for which it counts")
@as_json
def add(names: tuple[str, ...], folder: Path, days: int, as_json: bool) -> None:
    """Make a folder FOLDER/NAME for each NAME, which --tls names on that host: copy it there.

    A NAME that has one gets a new certificate for the same key; processes that run take it for
    their next connections.
    """
    from shoal.apps.keys import add_certificate

    made = [str(add_certificate(folder, name, days)) for name in names]
    told = {"folders": made}
    shown = [f"{each}: copy it to its host, and give --tls {each} there" for each in made]
    tell(as_json, told, lambda *_: click.echo("\n".join(shown)))


@main.command("keys", short_help="show and check a folder of `keys add`")
@click.argument("folder", type=_folder)
@as_json
def keys(folder: Path, as_json: bool) -> None:
    """Check the files that --tls FOLDER would use, and show the certificate.

    `shoal keys init` and `shoal keys add` make them.
    """
    found = credentials(str(folder))
    told: dict[str, Any] = {"certificate": found.described, "authority": found.authority}
    tell(as_json, told, lambda *_: click.echo(found.described))

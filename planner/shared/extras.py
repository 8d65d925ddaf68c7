"""How to install an extra, from wherever the package itself came."""

from __future__ import annotations

NAME = "fleetopt"


def installing(extra: str) -> str:
    """The command that installs an extra: of the index, the checkout, the archive or the repository this package is from.

    Notes
    -----
    Installers write beside a package where it came from, unless it came from an index (PEP 610).

    Examples
    --------
    >>> installing("gpu").startswith("pip install ")
    True
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in the folder of its sources"
    if not record:
        return f"pip install '{NAME}[{extra}]'"
    origin = json.loads(record)
    url = str(origin["url"])
    if (vcs := origin.get("vcs_info")) is not None:
        return f"pip install '{NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}'"
    place = url2pathname(urlsplit(url).path) if url.startswith("file:") else url
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{place}[{extra}]'"

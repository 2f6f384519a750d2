"""Results of single jobs, kept as JSON: run a benchmark again and it goes on where it was interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularbayes import checkpoint


def kept(
    folder: Path, key: str, settings: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What ``make`` gives, from ``folder/key.json`` where it was made before with equal settings.

    Raises:
        ValueError: the file is of other settings; choose another folder.
    """
    if (folder / f"{key}.json").is_file():
        found = checkpoint.read_json(folder, key)
        if found["settings"] != settings:
            made = f"{folder / key}.json was made with {found['settings']}, asked now {settings}"
            raise ValueError(f"{made}; choose another --out")
        return found["result"]
    result = make()
    checkpoint.write_json(folder / f"{key}.json", {"settings": settings, "result": result})
    print(f"  {key}", flush=True)
    return result

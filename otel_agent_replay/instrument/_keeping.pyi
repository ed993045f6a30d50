from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any

def numbers(
    original: Callable[[], Any],
    memo: type,
    whole: Callable[..., Any],
    write: Callable[[], None],
    offset: int,
    full: int,
    /,
) -> Callable[[object], Any]: ...
def times(
    original: Callable[[tzinfo | None], datetime],
    memo: type,
    whole: Callable[..., Any],
    write: Callable[[], None],
    offset: int,
    offset_with_zone: int,
    full: int,
    cls: type[datetime],
    zone: tzinfo,
    /,
) -> Callable[..., datetime]: ...

"""Durations, sizes, numbers of processors and addresses, as users write them.

Owns: their grammar, their limits, and the sentence that says how to write them. Never: which key
has which unit (`options`), the place of a value in a file (`document`).
"""

import ipaddress
import re

from metamcp_supervisor.config.config import UNIX, Address

DURATION_S_MIN = 0.001
"""Minimum seconds of a duration; a shorter one is below the resolution of every timer here, and can
only be a mistake."""
DURATION_S_MAX = 86_400.0
"""Maximum seconds of a duration: a day, because a longer wait is as good as forgotten."""
PAST_S_MAX = 366 * 86_400.0
"""Maximum seconds that a user may look back: a year. Files kept for days are limited by size, not
by age."""
_DURATION_CHARACTERS_MAX = 32
"""Maximum characters of a duration; `23h59m59s999ms` has 14."""
_PLAUSIBLE = 1_000_000
"""Number from which on a duration without a unit is not repeated as an example in the message."""
_PORT_MAX = 65_535
SIZE_BYTES_MIN = 1024
"""Minimum bytes of a size: a kibibyte; a smaller value can only be a mistake."""
SIZE_BYTES_MAX = 1024**4
"""Maximum bytes of a size: a tebibyte, more than the usual machines have."""
_SIZE_CHARACTERS_MAX = 16
"""Maximum characters of a size; `1048576.5K` has 10."""
CORES_MIN = 0.01
"""Minimum number of processors, the smallest share of the kernel's scheduler: 1 ms of each
100 ms."""
CORES_MAX = 1024.0
"""Maximum number of processors, more than a machine of today has."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])", re.ASCII)
_SIZES = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)
_IN_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\]:(\d{1,5})", re.ASCII)
_PLAIN = re.compile(r"([A-Za-z0-9.-]+):(\d{1,5})", re.ASCII)
_NUMERIC = re.compile(r"[0-9.]+", re.ASCII)


def duration(value: object, most: float = DURATION_S_MAX) -> float:
    """Convert a duration to seconds, at most `most`. Raises ValueError with a sentence."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = f"{value:g}" if 0 < value < _PLAUSIBLE else "60"
        raise ValueError(f'a number has no unit; write it like "{number}s" or "{number}ms"')
    if not isinstance(value, str):
        raise ValueError('must be a duration, such as "500ms", "30s", "15m" or "1h30m"')
    if len(value) > _DURATION_CHARACTERS_MAX or not _WHOLE.fullmatch(value):
        days = ', "2d"' if most > DURATION_S_MAX else ""
        raise ValueError(f'is not a duration; write it like "500ms", "30s", "15m"{days} or "1h30m"')
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value))
    if seconds < DURATION_S_MIN:
        raise ValueError('is too short; the shortest duration is "1ms"')
    if seconds > most:
        longest = "24h" if most == DURATION_S_MAX else f"{most / _UNITS_S['d']:g}d"
        raise ValueError(f'is too long; the longest duration here is "{longest}"')
    return seconds


def duration_within(value: object, low: str, high: str) -> float:
    """Convert a duration to seconds within these bounds, which are durations or empty. Raises
    ValueError with a sentence."""
    most = duration(high, PAST_S_MAX) if high else DURATION_S_MAX
    seconds = duration(value, max(most, DURATION_S_MAX))
    if seconds > most:
        raise ValueError(f'is too long; the longest time here is "{high}"')
    if low and seconds < duration(low):
        raise ValueError(f'is too short; the shortest time here is "{low}"')
    return seconds


def duration_text(seconds: float) -> str:
    """Write seconds as a duration with a single unit: 90.0 → `90s`, 3600.0 → `1h`."""
    for unit in ("h", "m", "s", "ms"):
        count = seconds / _UNITS_S[unit]
        if count >= 1 and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{unit}"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


def size(value: object, low: int = SIZE_BYTES_MIN) -> int:
    """Convert a size to bytes, in whole kibibytes, at least `low`. Raises ValueError with a
    sentence."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError('a number has no unit; write it like "512M" or "1G"')
    if not isinstance(value, str):
        raise ValueError('must be a size, such as "64K", "512M" or "1.5G"')
    match = _SIZE.fullmatch(value) if len(value) <= _SIZE_CHARACTERS_MAX else None
    if match is None:
        raise ValueError('is not a size; write it like "64K", "512M" or "1.5G"')
    count = round(float(match[1]) * _SIZES[match[2]] / 1024) * 1024
    if count < low:
        raise ValueError(f'is too small; the smallest size here is "{size_text(low)}"')
    if count > SIZE_BYTES_MAX:
        raise ValueError(f'is too large; the largest size is "{size_text(SIZE_BYTES_MAX)}"')
    return count


def size_within(value: object, low: str, high: str) -> int:
    """Convert a size to bytes within these bounds, which are sizes. Raises ValueError with a
    sentence."""
    count = size(value, int(low) if low.isdecimal() else size(low))
    if high and count > size(high):
        raise ValueError(f'is too large; the largest size here is "{high}"')
    return count


def size_text(count: int) -> str:
    """Write whole kibibytes in the shortest way: 536870912 → `512M`."""
    unit = next(unit for unit in "TGMK" if unit == "K" or not count % _SIZES[unit])
    return f"{count // _SIZES[unit]}{unit}"


def cores(value: object) -> float:
    """Convert a number of processors: 1.5 or "150%". Raises ValueError with a sentence."""
    if isinstance(value, str) and len(value) <= _SIZE_CHARACTERS_MAX:
        match = _PERCENT.fullmatch(value)
        number = float(match[1]) / 100 if match else None
    else:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None:
        raise ValueError('must be a number of processors, such as 1.5 or "150%"')
    if not CORES_MIN <= number <= CORES_MAX:
        raise ValueError(f'must be from {CORES_MIN:g} ("1%") to {CORES_MAX:g} processors')
    return float(number)


def address(text: str) -> Address:
    """Parse `host:port`, with an IPv6 address in brackets. Port 0: any free port. Raises
    ValueError with a sentence."""
    if text.startswith(UNIX):
        raise ValueError(
            "cannot be a unix socket, where no client of MCP connects (only ops_listen can); write"
            ' it like "127.0.0.1:6270"'
        )
    match = _IN_BRACKETS.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is None:
        raise ValueError(
            f'{text[:64]!r} is not an address; write it like "127.0.0.1:6270" or "[::1]:6270"'
        )
    host, port = match[1], int(match[2])
    if port > _PORT_MAX:
        raise ValueError(f"has port {port}; the highest port is {_PORT_MAX}")
    if ":" in host or _NUMERIC.fullmatch(host):
        try:
            host = str(ipaddress.ip_address(host))
        except ValueError:
            raise ValueError(f"has no valid IP address: {host}") from None
    return Address(host, port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host. False for names other than `localhost`, which may
    mean any machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

"""What ``nvidia-smi`` says about the memory of the graphics cards, and which card is whose.

``nvidia-smi`` lists every card of the machine in the order of the PCI bus. A CUDA program may see
other cards in another order (``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``), so a card is found
by its UUID, and by the rules of ``CUDA_VISIBLE_DEVICES`` only where CUDA tells no UUID.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_FIELDS = ("uuid", "index", "memory.free", "memory.used")
_COMMAND = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")


class NvidiaSmiError(RuntimeError):
    """``nvidia-smi`` gave no usable answer; the message says why."""


@dataclass(frozen=True)
class Card:
    """One line of the answer.

    Attributes:
        uuid: ``GPU-`` and the card's UUID.
        index: Position on the PCI bus.
        free: MiB that nobody has allocated, None if ``nvidia-smi`` does not tell.
        used: MiB allocated by all processes together, None if ``nvidia-smi`` does not tell.
    """

    uuid: str
    index: int
    free: int | None
    used: int | None


def query(timeout: float = 10.0) -> list[Card]:
    """Asks ``nvidia-smi`` once for all cards.

    Args:
        timeout: Seconds after which to give up; a driver without persistence mode needs a few.

    Returns:
        The cards, in the order of the answer.

    Raises:
        NvidiaSmiError: If there is no such tool, or it fails, hangs or lists no card.
    """
    try:
        answer = subprocess.run(
            _COMMAND, capture_output=True, text=True, errors="replace", timeout=timeout, check=True
        )
    except subprocess.TimeoutExpired:
        raise NvidiaSmiError(f"nvidia-smi did not answer within {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(f"{error.stdout or ''} {error.stderr or ''}".split()) or "nothing"
        raise NvidiaSmiError(
            f"nvidia-smi ended with exit code {error.returncode} and said: {said}"
        ) from None
    except OSError as error:
        raise NvidiaSmiError(f"nvidia-smi could not be started ({error})") from None
    cards = parse(answer.stdout)
    if not cards:
        raise NvidiaSmiError(f"nvidia-smi listed no card but answered {answer.stdout!r}")
    return cards


def parse(output: str) -> list[Card]:
    """Reads the answer to the query of this module.

    Args:
        output: One line per card, the fields separated by commas. Lines of another form (warnings
            that the tool mixes in) are left out.

    Returns:
        The cards. A figure that is not a whole number (``[N/A]``, ``[Not Supported]``,
        ``[Insufficient Permissions]``) is None.
    """
    cards = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(_FIELDS) and fields[1].isdecimal():
            uuid, index, free, used = fields
            cards.append(Card(uuid, int(index), _mebibytes(free), _mebibytes(used)))
    return cards


def _mebibytes(figure: str) -> int | None:
    number = re.fullmatch(r"(\d+)( MiB)?", figure)
    return int(number[1]) if number else None


def find_card(
    cards: Sequence[Card], device: int, uuid: str | None = None, visible: str | None = None
) -> Card:
    """Finds the card behind a CUDA device.

    Args:
        cards: All cards of the machine.
        device: Index of the device, as CUDA counts.
        uuid: The UUID that CUDA tells for the device, with or without ``GPU-``; None if it tells
            none.
        visible: The value of ``CUDA_VISIBLE_DEVICES``, None if it is not set.

    Returns:
        The card.

    Raises:
        AttributeError: If there is no such device.
        NvidiaSmiError: If no card has the UUID, or the device is a part of a card (MIG), for which
            ``nvidia-smi`` has no figures.
    """
    if uuid is None:
        devices = _visible_cards(cards, visible)
        if not 0 <= device < len(devices):
            raise AttributeError(f"GPU {device} not available (found {len(devices)} GPUs)")
        card = devices[device]
    else:
        card = next((card for card in cards if _bare(card.uuid) == _bare(uuid)), None)
    if card is None or _is_part_of_card(device, visible):
        raise NvidiaSmiError(f"nvidia-smi lists no card that is all of device {device}")
    return card


def _is_part_of_card(device: int, visible: str | None) -> bool:
    """Tells a MIG device, whose UUID may be given as that of the whole card."""
    entries = (visible or "").split(",")
    return device < len(entries) and entries[device].strip().startswith("MIG-")


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _visible_cards(cards: Sequence[Card], visible: str | None) -> list[Card | None]:
    """Applies ``CUDA_VISIBLE_DEVICES`` by its rules; None stands for a part of a card.

    The rules (CUDA C++ Programming Guide, "CUDA Environment Variables"): indices or UUIDs, a UUID
    may be cut short as long as it is unambiguous, everything from the first invalid entry on is
    ignored, and a card that is named twice hides all. Indices are taken in the order of the PCI
    bus, which is CUDA's own order with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or with equal cards.
    """
    ordered = sorted(cards, key=lambda card: card.index)
    if visible is None:
        return list(ordered)
    chosen: list[Card | None] = []
    for entry in visible.split(","):
        named = _named_cards(ordered, entry.strip())
        if len(named) != 1:
            break
        chosen += named
    known = [card.uuid for card in chosen if card is not None]
    return chosen if len(set(known)) == len(known) else []


def _named_cards(cards: Sequence[Card], entry: str) -> list[Card | None]:
    """Returns the cards that an entry of ``CUDA_VISIBLE_DEVICES`` may mean."""
    if entry.startswith("MIG-"):
        return [None]
    number = re.match(r"\d+", entry)  # CUDA, too, reads the digits and ignores what follows
    if number:
        return [card for card in cards if card.index == int(number[0])]
    if not entry.upper().startswith("GPU-"):
        return []
    return [card for card in cards if _bare(card.uuid).startswith(_bare(entry))]

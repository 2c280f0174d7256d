from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gnnprof import _nvidia_smi
from gnnprof._nvidia_smi import Card, NvidiaSmiError, find_card, parse, query

A = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
B = "GPU-8932aaaa-0000-1111-2222-333344445555"
C = "GPU-5f3c1a2b-4d5e-6f70-8192-a3b4c5d6e7f8"
CARDS = [Card(A, 0, 100, 900), Card(B, 1, 200, 800), Card(C, 2, 300, 700)]


def test_answer_of_three_cards() -> None:
    answer = f"{A}, 0, 100, 900\n{B}, 1, 200, 800\n{C}, 2, 300, 700\n"
    assert parse(answer) == CARDS


@pytest.mark.parametrize(
    "figure",
    [
        *("[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]"),
        *("", "-1", "1.5", "12 GiB", "1 2", "ERR!", "²"),
    ],
)
def test_a_figure_that_is_no_number_is_unknown(figure: str) -> None:
    assert parse(f"{A}, 0, {figure}, 12\n") == [Card(A, 0, None, 12)]
    assert parse(f"{A}, 0, 12, {figure}\n") == [Card(A, 0, 12, None)]


def test_units_and_line_ends_and_foreign_lines() -> None:
    answer = (
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0\r\n"
        "uuid, index, memory.free [MiB], memory.used [MiB]\r\n"
        f"{A}, 0, 100 MiB, 0 MiB\r\n"
        "\r\n"
        f"{B},1,200,800\r\n"
        "a, line, of, five, fields\r\n"
    )
    assert parse(answer) == [Card(A, 0, 100, 0), Card(B, 1, 200, 800)]


@pytest.mark.parametrize("answer", ["", "\n", "No devices were found\n", "\x00\ufffd\n"])
def test_answers_without_cards(answer: str) -> None:
    assert parse(answer) == []


# -- asking ----------------------------------------------------------------------------------------


def install_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a Python script first on PATH as nvidia-smi."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!{sys.executable} -S\nimport sys\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def test_query_starts_the_tool_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    install_tool(
        tmp_path,
        monkeypatch,
        f"print(sys.argv[1:], file=open({str(calls)!r}, 'a'))\nprint('{A}, 0, 100, 900')",
    )
    assert query() == CARDS[:1]
    assert calls.read_text() == (
        "['--query-gpu=uuid,index,memory.free,memory.used', '--format=csv,noheader,nounits']\n"
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "print('NVIDIA-SMI has failed'); print('driver', file=sys.stderr); sys.exit(9)",
            "ended with exit code 9 and said: NVIDIA-SMI has failed driver$",
        ),
        ("sys.exit(2)", "ended with exit code 2 and said: nothing$"),
        ("print('No devices were found')", r"listed no card but answered 'No devices were found\\"),
        ("import os; os.write(1, bytes([255, 10]))", "listed no card but answered"),
        ("import time; time.sleep(60)", r"did not answer within 0\.5 s"),
    ],
)
def test_query_says_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    install_tool(tmp_path, monkeypatch, script)
    with pytest.raises(NvidiaSmiError, match=message):
        query(timeout=0.5 if "sleep" in script else 30)


def test_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NvidiaSmiError, match=r"could not be started \(.*No such file"):
        query()


def test_tool_that_may_not_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", "nvidia-smi")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(NvidiaSmiError, match=r"could not be started \(.*Permission denied"):
        query()


# -- which card ------------------------------------------------------------------------------------


@pytest.mark.parametrize("uuid", [C, C.removeprefix("GPU-"), C.upper()])
@pytest.mark.parametrize("visible", [None, "2", C, "0,1,2"])
def test_a_uuid_decides(uuid: str, visible: str | None) -> None:
    assert find_card(CARDS, 0, uuid, visible) is CARDS[2]


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        (None, [0, 1, 2]),
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("1", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("1,7,2", [1]),
        ("2,2", []),
        ("0,1,0", []),
        ("1gpu,2", [1, 2]),
        (C, [2]),
        (f"{C},{A}", [2, 0]),
        ("GPU-5f3c", [2]),
        ("GPU-5F3C", [2]),
        ("GPU-8932", []),  # means two cards
        ("GPU-8932f,GPU-8932a", [0, 1]),
        ("GPU-ffff", []),
        ("1,GPU-5f3c", [1, 2]),
    ],
)
def test_visible_devices(visible: str | None, cards: list[int]) -> None:
    found = [find_card(CARDS[::-1], i, None, visible) for i in range(len(cards))]
    assert found == [CARDS[i] for i in cards]
    for beyond in (len(cards), -1):
        with pytest.raises(
            AttributeError, match=rf"^GPU {beyond} not available \(found {len(cards)} GPUs\)$"
        ):
            find_card(CARDS, beyond, None, visible)


@pytest.mark.parametrize(
    "visible",
    [
        "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
        "MIG-a1b2c3d4-0000-1111-2222-333344445555",
        "MIG-1,MIG-2",
    ],
)
@pytest.mark.parametrize("uuid", [None, A])
def test_a_part_of_a_card_has_no_figures(visible: str, uuid: str | None) -> None:
    with pytest.raises(NvidiaSmiError, match="no card that is all of device 0"):
        find_card(CARDS, 0, uuid, visible)


def test_a_card_that_is_not_listed() -> None:
    with pytest.raises(NvidiaSmiError, match="no card that is all of device 1"):
        find_card(CARDS, 1, "00000000-0000-0000-0000-000000000000")


@pytest.mark.cuda
def test_the_card_of_each_device_is_listed() -> None:
    import torch

    cards = query()
    for device in range(torch.cuda.device_count()):
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        card = find_card(cards, device, uuid)
        total = torch.cuda.get_device_properties(device).total_memory / 2**20
        assert card.free is not None
        assert card.used is not None
        # The driver keeps some of the card to itself: it is in neither figure.
        assert card.free + card.used == pytest.approx(total, rel=0.05)
        assert _nvidia_smi._bare(card.uuid) == _nvidia_smi._bare(uuid)

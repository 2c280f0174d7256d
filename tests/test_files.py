"""Files appear whole or not at all, and none is lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnprof import _files
from gnnprof._files import ranked, set_aside, write_atomically


def write(text: str) -> Any:
    return lambda path: path.write_text(text)


def test_written_under_another_name_with_the_same_suffix(tmp_path: Path) -> None:
    target = tmp_path / "run.json.gz"
    seen: list[Path] = []

    def writer(temporary: Path) -> None:
        seen.append(temporary)
        assert not target.exists()
        temporary.write_text("new")

    assert write_atomically(target, writer) == target
    assert target.read_text() == "new"
    assert seen[0].parent == tmp_path
    assert seen[0].name.endswith(".json.gz")
    assert os.listdir(tmp_path) == ["run.json.gz"]


def test_an_earlier_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")
    with pytest.raises(FileExistsError, match="already exists; give another name"):
        write_atomically(target, write("new"))
    assert target.read_text() == "old"
    write_atomically(target, write("new"), overwrite=True)
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "run.json"

    def slow(temporary: Path) -> None:
        temporary.write_text("ours")
        target.write_text("theirs")

    with pytest.raises(FileExistsError):
        write_atomically(target, slow)
    assert target.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["run.json"]


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    write_atomically(tmp_path / "run.json", write("new"))
    assert (tmp_path / "run.json").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_everything_as_it_was(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "run.json"
    target.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of")
        raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        write_atomically(target, fail, overwrite=True)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "run.json"
    with pytest.raises(FileNotFoundError) as raised:
        write_atomically(target, write("new"))
    assert raised.value.filename == str(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError) as raised:
        write_atomically(tmp_path / "run.json", write("new"))
    tmp_path.chmod(0o700)
    assert raised.value.filename == str(tmp_path / "run.json")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, write("new"), overwrite=True)
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_gets_what_was_written_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def rename_onto(path: Path) -> None:  # as torch does it when it saves a trace
        path.with_suffix(".tmp").write_text("trace")
        path.with_suffix(".tmp").replace(path)

    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, rename_onto)
    reader.join()
    assert received == ["trace"]
    assert pipe.is_fifo()


def test_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", write(""))
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "atomic")]
    assert modes[0] == modes[1]


def test_set_aside_finds_a_free_number(tmp_path: Path) -> None:
    target = tmp_path / "profile-lr-0.5.json"
    assert set_aside(target) is None
    for text in ("first", "second"):
        target.write_text(text)
        set_aside(target)
    assert not target.exists()
    assert (tmp_path / "profile-lr-0.5.1.json").read_text() == "first"
    assert (tmp_path / "profile-lr-0.5.2.json").read_text() == "second"


def become_rank(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("timeline.json", "timeline-rank1.json"),
        ("out/timeline.json.gz", "out/timeline-rank1.json.gz"),
        ("lr-0.5.json", "lr-0.5-rank1.json"),
        ("trace", "trace-rank1"),
    ],
)
def test_rank_in_the_name(name: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranked(name) == Path(name)
    become_rank(monkeypatch, 1, 2)
    assert ranked(name) == Path(named)
    become_rank(monkeypatch, 0, 1)
    assert ranked(name) == Path(name)


@pytest.mark.parametrize(
    ("rank", "size", "named"),
    [
        ("1", "2", "timeline-rank1.json"),
        ("0", "1", "timeline.json"),
        ("2", "2", "timeline.json"),
        ("-1", "2", "timeline.json"),
        ("1", "", "timeline.json"),
        ("one", "two", "timeline.json"),
    ],
)
def test_without_a_process_group_the_rank_is_torchruns(
    rank: str, size: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert ranked("timeline.json") == Path(named)
    become_rank(monkeypatch, 3, 4)
    assert ranked("timeline.json") == Path("timeline-rank3.json")


def test_no_distributed_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: 1 / 0)
    assert _files.ranked("timeline.json") == Path("timeline.json")

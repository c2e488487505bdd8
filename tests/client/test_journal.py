"""Decode lines of several SGLang versions, and what a cell's part of the log says."""

import pytest
from make_records import make_record

from draftbench.client import validity
from draftbench.client.journal import (
    LogFile,
    find_problems,
    num_window_tokens,
    parse_decode_line,
    summarise_journal,
)
from draftbench.errors import MeasurementError


def line(length=None, rate=None, *, running=1, speed=100.0, prefix="[2026-11-29 15:00:01]", form=","):
    accept = f"accept len: {length:.2f}, accept rate: {rate or 0:.2f}, " if length is not None else ""
    return (
        f"{prefix} Decode batch{form} #running-req: {running}, #token: 123, token usage: 0.01, {accept}"
        f"cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: 0"
    )


FORMS = [",", ".", " [123],", " [4],"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "prefix", ["[2026-11-29 15:00:01]", "[2026-11-29 15:00:01 DP1 TP3]", "host sglang[7]:"]
)
def test_each_form_of_the_line_is_read(form, prefix):
    parsed = parse_decode_line(line(3.21, 0.15, prefix=prefix, form=form))
    assert parsed.accept_length == 3.21
    assert parsed.values["accept rate"] == 0.15
    assert parsed.values["#running-req"] == 1
    assert parsed.values["gen throughput (token/s)"] == 100
    assert (parsed.data_rank, parsed.tensor_rank) == ((1, 3) if "DP1" in prefix else (0, 0))


def test_keys_are_read_in_any_order():
    parsed = parse_decode_line(
        "Decode batch, gen throughput (token/s): 5.5, accept len: 2.00, #running-req: 4"
    )
    assert (parsed.accept_length, parsed.values["#running-req"]) == (2.0, 4)


def test_colours_are_no_part_of_the_line():
    coloured = (
        "\x1b[32m[TP0]\x1b[0m \x1b[1mDecode batch\x1b[0m, \x1b[33maccept len: 2.50\x1b[0m, #running-req: 1"
    )
    assert parse_decode_line(coloured).accept_length == 2.5


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-seq: 1, #new-token: 17",
        "",
        "INFO decode batching is on",
        'GET "/generate" 200 OK',
    ],
)
def test_other_lines_are_not_decode_lines(text):
    assert parse_decode_line(text) is None


def test_an_autoregressive_line_has_no_accept_length():
    stats = summarise_journal(line())
    assert (stats.accept_length, stats.accept_rate, stats.num_lines) == (None, None, 1)
    assert stats.accept_rate_kind is None
    assert stats.gen_tok_per_s == 100


def test_a_window_without_verifications_or_speed_adds_nothing():
    stats = summarise_journal("\n".join([line(0.0, speed=0.0), line(3.0, speed=50.0)]))
    assert (stats.accept_length, stats.gen_tok_per_s) == (pytest.approx(3.0), pytest.approx(50.0))


def test_the_accept_length_is_all_tokens_over_all_verifications():
    # 1 request at 4.0 and 999 at 2.0, over as many steps: 4 + 1,998 tokens in 1 + 999 verifications.
    stats = summarise_journal("\n".join([line(4.0, running=1), line(2.0, running=999)]))
    assert stats.accept_length == pytest.approx(2.002)


def test_the_speed_is_all_tokens_over_all_time():
    stats = summarise_journal("\n".join([line(speed=10.0), line(speed=90.0)]))
    assert stats.gen_tok_per_s == pytest.approx(18.0)  # 80 tokens in 4 + 4/9 s


def test_tensor_parallel_ranks_are_counted_once():
    text = "\n".join(line(3.0, prefix=f"[2026-11-29 TP{rank}]") for rank in range(4))
    assert summarise_journal(text).num_lines == 1
    assert num_window_tokens(text) == 120


def test_data_parallel_ranks_are_all_counted():
    text = "\n".join(
        line(length, prefix=f"[2026-11-29 DP{rank} TP{2 * rank}]") for rank, length in ((0, 9.0), (1, 2.0))
    )
    stats = summarise_journal(text)
    assert stats.num_lines == 2
    assert stats.accept_length == pytest.approx(440 / 80)


@pytest.mark.parametrize(
    ("length", "rate", "kind"),
    [
        (3.2, 2.2 / 15, "accepted-per-proposed"),
        (3.3, 3.3 / 16, "emitted-per-draft-size"),
        (3.2, 0.5, "unknown"),
    ],
)
def test_the_accept_rate_is_named_by_what_it_divides(length, rate, kind):
    stats = summarise_journal(line(length, rate), num_draft_tokens=16)
    assert stats.accept_rate_kind == kind


def test_without_drafts_an_accept_rate_divides_by_nothing_known():
    assert summarise_journal(line(3.2, 0.2), num_draft_tokens=1).accept_rate_kind == "unknown"


def test_two_kinds_of_accept_rate_are_never_mixed():
    stats = summarise_journal("\n".join([line(3.2, 2.2 / 15), line(3.2, 0.2)]), num_draft_tokens=16)
    assert (stats.accept_rate, stats.accept_rate_kind) == (None, "unknown")


def test_a_line_that_both_kinds_explain_does_not_hide_the_others():
    full = line(16.0, 1.0)
    stats = summarise_journal("\n".join([line(3.2, 2.2 / 15), full]), num_draft_tokens=16)
    assert stats.accept_rate_kind == "accepted-per-proposed"
    assert summarise_journal(full, num_draft_tokens=16).accept_rate_kind == "unknown"


PROBLEM_LINES = [
    ("retraction", "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 40"),
    ("kv-full", "KV cache pool is full. Retract requests."),
    ("kv-full", "Prefill out of KV cache"),
    ("kv-full", "There is no available KV slot"),
    ("out-of-memory", "torch.OutOfMemoryError: Tried to allocate 2.00 GiB"),
    ("out-of-memory", "RuntimeError: CUDA error: out of memory"),
    ("out-of-memory", "kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)"),
    ("xid", "kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=123, GPU has fallen off the bus."),
    ("restart", "The server is fired up and ready to roll!"),
    ("restart", "INFO:     Started server process [4242]"),
    ("crash", "Scheduler hit an exception: Traceback (most recent call last):"),
    ("crash", "Fatal Python error: Segmentation fault"),
    ("crash", "Watchdog timeout (self.watchdog_timeout=300)"),
]


@pytest.mark.parametrize(("name", "text"), PROBLEM_LINES)
def test_lines_that_void_a_cell_are_found(name, text):
    problems = summarise_journal(f"fine\n{text}").problems
    assert name in [problem.partition(":")[0] for problem in problems]


def test_of_each_kind_of_problem_the_first_line_is_told():
    assert find_problems(["CUDA out of memory, at first", "CUDA out of memory, again"]) == [
        "out-of-memory: CUDA out of memory, at first"
    ]


@pytest.mark.parametrize(
    "text",
    [
        line(3.0) + ", #retracted-req: 0",
        "server_args=ServerArgs(test_retract=False, test_retract_interval=3)",
        'INFO: 127.0.0.1 - "POST /generate HTTP/1.1" 200 OK',
    ],
)
def test_harmless_lines_void_nothing(text):
    assert find_problems([text]) == []


def test_only_the_part_between_two_marks_is_read(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(line(9.0) + "\n")
    log = LogFile(path)
    start = log.mark()
    with path.open("a") as stream:
        stream.write(line(2.0) + "\n")
    end = log.mark()
    with path.open("a") as stream:
        stream.write(line(8.0) + "\n")
    assert summarise_journal(log.read(start, end)).accept_length == 2.0


def test_a_log_that_appears_during_the_cell_is_read_whole(tmp_path):
    log = LogFile(tmp_path / "server.log")
    start = log.mark()
    (tmp_path / "server.log").write_text("one\n")
    assert log.read(start, log.mark()) == "one\n"


def test_a_server_that_logged_nothing_during_the_cell_has_its_log_still(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("one\n")
    log = LogFile(path)
    assert log.read(log.mark(), log.mark()) == ""


def test_bytes_that_are_no_text_do_not_hide_the_log(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff one\n")
    assert LogFile(path).read((0, 0), LogFile(path).mark()) == "\ufffd one\n"


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_a_log_that_was_replaced_is_an_error(tmp_path, how):
    path = tmp_path / "server.log"
    path.write_text("first\n")
    log = LogFile(path)
    start = log.mark()
    if how == "replaced":
        other = tmp_path / "other"
        other.write_text("a new log that is longer\n")
        other.replace(path)
    else:
        path.write_text("")
    with pytest.raises(MeasurementError, match="another or a shorter file"):
        log.read(start, log.mark())


@pytest.mark.parametrize(
    ("log_length", "is_flagged"), [(2.0, False), (2.03, False), (2.05, True), (1.9, True)]
)
def test_a_disagreement_above_two_percent_is_flagged(log_length, is_flagged):
    stats = summarise_journal("\n".join([line(log_length)] * 10)).model_copy(update={"coverage": 0.95})
    records = [make_record(num_rounds=100, num_accepted_tokens=100)]
    assert bool(validity.journal_flags(stats, records)) is is_flagged


@pytest.mark.parametrize(("log_length", "is_flagged"), [(2.5, False), (2.6, True)])
def test_a_window_that_reaches_beyond_the_cell_is_allowed_for(log_length, is_flagged):
    stats = summarise_journal(
        "\n".join([line(1.0), *[line(6.0)] * 9])
    )  # one window moves the mean by up to 0.5
    stats = stats.model_copy(update={"coverage": 0.95, "accept_length": log_length})
    records = [make_record(num_rounds=100, num_accepted_tokens=100)]
    assert bool(validity.journal_flags(stats, records)) is is_flagged


@pytest.mark.parametrize(("num_lines", "coverage"), [(9, 0.95), (10, 0.79)])
def test_a_log_that_saw_too_little_is_not_compared(num_lines, coverage):
    stats = summarise_journal("\n".join([line(9.0)] * num_lines)).model_copy(update={"coverage": coverage})
    assert validity.journal_flags(stats, [make_record(num_rounds=100, num_accepted_tokens=100)]) == []

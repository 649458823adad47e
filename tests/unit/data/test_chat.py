"""Chat templates: rendered in a child process with limits of time and memory, from any thread."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest

from lemma import processes
from lemma.data import chat
from lemma.data.chat import ChatTemplateError, close_renderers, render_chat
from lemma.data.tokenizers import CONFIG_FILE, TEMPLATE_FILE, Tokenizer, train_tokenizer
from lemma.errors import DataError, RunError
from lemma.processes import child_environment
from lemma.spec.data import Characters
from pretrained_models import byte_level

TALK = [{"role": "user", "content": "Hi \ud83c!"}]
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
EXPENSIVE = {
    "one long string": "{{ 'a' * 3000000000 }}",
    "a string that grows": "{% set n = namespace(s='a') %}{% for a in range(60) %}{% set n.s = n.s~n.s %}{% endfor %}",
    "a long text": "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "a huge number": "{{ 99999 ** 99999999 }}",
    "a wide indent": "{{ messages | tojson(indent=1000000000) }}",
    "a recursive macro": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "deep nesting": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_template_is_stopped_without_blocking_the_next(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match="the model's chat template"):
        render_chat(EXPENSIVE[name], TALK, {})
    assert time.monotonic() - start < 8
    assert render_chat(PLAIN, TALK, {}) == "user:Hi \ud83c!;"


def test_stopped_template_can_be_rendered_again() -> None:
    template = (
        "{% if spin %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok"
    )
    with pytest.raises(ChatTemplateError, match="passed a limit"):
        render_chat(template, TALK, {}, spin=True)
    assert render_chat(template, TALK, {}, spin=False) == "ok"


def test_unresponsive_renderer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.3)
    monkeypatch.setattr(processes, "python_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    start = time.monotonic()
    with pytest.raises(ChatTemplateError, match="passed a limit"):
        render_chat(PLAIN + "{# silent #}", TALK, {})
    assert time.monotonic() - start < 5


def test_each_rendering_uses_the_current_time() -> None:
    template = "{{ strftime_now('%s.%f') }}"
    first, second = float(render_chat(template, TALK, {})), float(render_chat(template, TALK, {}))
    assert abs(time.time() - second) < 5
    assert second > first


def test_chat_rendering_is_thread_safe() -> None:
    def rendered(number: int) -> bool:
        template = f"{{{{ messages[0].content }}}} in {number % 9}"  # more templates than processes
        return render_chat(template, [{"role": "user", "content": str(number)}], {}) == f"{number} in {number % 9}"

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(rendered, range(36)))
    assert len(chat._renderers) <= chat.MAX_RENDERERS


def test_forked_process_starts_new_renderers() -> None:
    assert render_chat(PLAIN, TALK, {})
    child = os.fork()
    if child == 0:
        ok = all(render_chat(PLAIN, [{"role": "a", "content": str(n)}], {}) == f"a:{n};" for n in range(20))
        close_renderers()
        os._exit(0 if ok else 1)
    assert all(render_chat(PLAIN, [{"role": "b", "content": str(n)}], {}) == f"b:{n};" for n in range(20))
    assert os.waitpid(child, 0)[1] == 0


def test_renderer_exits_with_its_parent_without_importing_torch() -> None:
    code = (
        "import os, signal, sys\nfrom lemma.data import chat\n"
        "chat.render_chat('{{ 1 }}', [], {})\n"
        "process = next(iter(chat._renderers.values()))._process\n"
        "maps = open(f'/proc/{process.pid}/maps').read()\n"
        "print(process.pid, 'torch' in sys.modules or 'torch' in maps, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_environment())
    child, has_torch = done.stdout.split()
    assert has_torch == "False"
    until = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()


def test_renderer_does_not_import_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jinja2", "json", "lemma"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    close_renderers()
    assert render_chat(PLAIN, TALK, {})
    assert not (tmp_path / "trace").exists()


def test_template_accepts_only_json_data() -> None:
    message = MappingProxyType({"role": "user", "content": ("a", 1.5, None)})
    assert render_chat("{{ messages[0].content | tojson }}{{ tools }}", (message,), {}) == '["a", 1.5, null]None'
    with pytest.raises(DataError, match="a lock is neither text"):
        render_chat(PLAIN, TALK, {}, tools=[threading.Lock()])


def _saved(folder: Path, **config: object) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    if config:
        (folder / CONFIG_FILE).write_text(json.dumps(config))
    return folder / "tokenizer.json"


def test_template_error_names_its_file(tmp_path: Path) -> None:
    path = _saved(tmp_path, chat_template="{% if %}")
    with pytest.raises(DataError, match=f"{CONFIG_FILE}: the model's chat template cannot be rendered"):
        Tokenizer.load(path).chat(TALK)
    (tmp_path / TEMPLATE_FILE).write_text("{{ 1 // 0 }}")
    with pytest.raises(DataError, match=f"{TEMPLATE_FILE}: the model's chat template cannot be rendered: .*zero"):
        Tokenizer.load(path).chat(TALK)
    (tmp_path / TEMPLATE_FILE).write_bytes(b"{{ messages }}\xff")
    with pytest.raises(RunError, match=f"{TEMPLATE_FILE} is damaged.*utf-8"):
        Tokenizer.load(path)
    (tmp_path / TEMPLATE_FILE).write_bytes(b" " * (2 << 20))
    with pytest.raises(DataError, match=f"{TEMPLATE_FILE} has 2,097,152 bytes"):
        Tokenizer.load(path)


def test_trained_tokenizer_can_have_a_chat_template(tmp_path: Path) -> None:
    train_tokenizer(Characters(), ["abc"]).save(tmp_path / "tokenizer.json")
    (tmp_path / TEMPLATE_FILE).write_text(PLAIN)
    assert Tokenizer.load(tmp_path / "tokenizer.json").chat([{"role": "a", "content": "b"}]) == "a:b;"


@pytest.mark.parametrize(
    "field",
    [
        {"chat_template": 3},
        {"chat_template": ["{{ 1 }}"]},
        {"chat_template": [{"name": "default"}]},
        {"eos_token": {"text": "x"}},
        {"eos_token": ["x"]},
    ],
    ids=str,
)
def test_wrong_type_in_tokenizer_config_is_named(tmp_path: Path, field: dict[str, object]) -> None:
    with pytest.raises(RunError, match=f"{CONFIG_FILE}: .*{next(iter(field))}"):
        Tokenizer.load(_saved(tmp_path, **field))


def test_flags_and_numbers_are_not_special_tokens(tmp_path: Path) -> None:
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "pad_token": None}
    result = Tokenizer.load(_saved(tmp_path, **tokens, num_image_token=256)).special_tokens
    assert result == {"bos_token": "<s>", "eos_token": "</s>"}


def test_generation_config_is_checked_and_zeros_disable_settings(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"top_k": 0, "no_repeat_ngram_size": 0, "temperature": 0.5}')
    assert Tokenizer.load(path).sampling == {"temperature": 0.5}
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(RunError, match=r"generation_config.json: temperature = 'hot'"):
        Tokenizer.load(path)


def test_tojson_filter_accepts_the_arguments_of_transformers() -> None:
    template = "{{ messages[0].content|tojson(ensure_ascii=True) }}{{ messages|tojson(separators=(',', ':')) }}"
    text = render_chat(template, [{"role": "user", "content": "é"}], {})
    assert text == '"\\u00e9"[{"role":"user","content":"é"}]'

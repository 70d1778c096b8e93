# SPDX-License-Identifier: Apache-2.0
"""Chat templates are rendered as transformers renders them, and unknown ones are refused.

Method: templates of each recognised shape, written here in the ways that models write them, go
through transformers' apply_chat_template and through berth-render-chat with the same
conversations.
"""

import datetime
import json
import os
import pathlib
import subprocess

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("BERTH_BIN_DIR", ROOT / "build/release/bin")) / "berth-render-chat"
SMOLLM2 = pathlib.Path(os.environ.get("BERTH_MODEL_DIR", ROOT / "build/models/smollm2"))

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a careful clerk, don\\'t guess.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
APART = """{{ bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}
    {{- "\\n" + message.content }}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You know these tools.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n" }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful clerk.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}{{- '\\n<tool_call>' + tool_call.name }}{%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}{{- '\\n<tool_call>' + tool_call.name }}{%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>' + content + '</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA30 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA30_ALWAYS = LLAMA30.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")
LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The first system message stands apart. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to functions." }}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- raise_exception("no tools") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA32 = LLAMA31.replace(
    '    {%- set date_string = "26 Jul 2024" %}',
    '    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now("%d %b %Y") %}\n'
    '    {%- else %}\n        {%- set date_string = "26 Jul 2024" %}\n    {%- endif %}')
KNOWN = dict(CHATML=CHATML, DEFAULT_SYSTEM=DEFAULT_SYSTEM, APART=APART, TOOLS=TOOLS, THINKING=THINKING,
             LLAMA30=LLAMA30, LLAMA30_ALWAYS=LLAMA30_ALWAYS, LLAMA31=LLAMA31, LLAMA32=LLAMA32)

CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "Hi")],
    [("user", " padded \n"), ("assistant", "\n yes \t"), ("user", "\u00a0Größe 😀\u3000")],
    [("system", ""), ("user", "")],
    [("user", "a"), ("assistant", "<think>\nwhy\n</think>\n\nb"), ("user", "c"), ("assistant", "d"), ("user", "e")],
    [("user", "a"), ("assistant", "<think>\nwhy\n\n</think>\n\nb")],
    [("user", "a"), ("assistant", "plain")],
    [("user", "a"), ("assistant", "<think>x</think>y"), ("assistant", "z")],
    [("user", "a"), ("system", "in the middle"), ("user", "{{ not a template }}")],
    [("assistant", "first"), ("user", "b")],
]

REFUSED = {
    "MISTRAL": "{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}",
    "GEMMA": "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + message['content'] }}{% endfor %}",
    "MORE": CHATML.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\nSure: ' }}"),
    "DATED": "{{ '<|im_start|>system\\nIt is ' + strftime_now('%Y') + '<|im_end|>\\n' }}" + CHATML,
    "TRIMMED": CHATML.replace("message['content']", "message['content'] | trim"),
    "LOWERED": CHATML.replace("message['content']", "message['content'] | lower"),
    "RAISING": "{{ raise_exception('no') }}" + CHATML,
    "MACRO": "{% macro f(x) %}{{ x }}{% endmacro %}" + CHATML,
    "TORN": CHATML[:-5],
    "EMPTY": "nothing at all",
}


def run_tool(folder, requests):
    given = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([TOOL, folder], input=given.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def compare(tokenizer, folder):
    requests = [{"messages": [{"role": r, "content": c} for r, c in conversation], "prompt": prompt}
                for conversation in CONVERSATIONS for prompt in (True, False)]
    answers = run_tool(folder, requests)
    for request, answer in zip(requests, answers, strict=True):
        expected = tokenizer.apply_chat_template(request["messages"], tokenize=False,
                                                 add_generation_prompt=request["prompt"])
        assert answer == expected, request


def bare_tokenizer(template):
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<|begin|>",
                                   eos_token="<|im_end|>", chat_template=template)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_shape_is_rendered_as_transformers_does(tmp_path, name):
    tokenizer = bare_tokenizer(KNOWN[name])
    (tmp_path / "chat_template.jinja").write_text(KNOWN[name])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<|begin|>"}}))
    day = datetime.date.today()
    compare(tokenizer, tmp_path)
    assert datetime.date.today() == day or name != "LLAMA32", "midnight passed; run again"


def test_a_template_within_tokenizer_config_is_found(tmp_path):
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    compare(bare_tokenizer(CHATML), tmp_path)


def test_smollm2_is_rendered_as_transformers_does():
    if not (SMOLLM2 / "tokenizer.json").exists():
        pytest.skip(f"{SMOLLM2} is not there: configs/make_model.py makes it")
    compare(PreTrainedTokenizerFast.from_pretrained(SMOLLM2), SMOLLM2)


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_template_is_refused_with_its_first_words(tmp_path, name):
    (tmp_path / "chat_template.jinja").write_text(REFUSED[name])
    done = subprocess.run([TOOL, tmp_path], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 1
    words = json.dumps(REFUSED[name][:20])[1:-1]
    assert words in done.stderr.decode()


def test_a_model_without_a_template_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    done = subprocess.run([TOOL, tmp_path], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 1
    assert "no chat template" in done.stderr.decode()

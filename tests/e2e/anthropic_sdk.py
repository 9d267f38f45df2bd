#!/usr/bin/env python3
"""The official Anthropic SDK against a running gateway: what a user's program does, and which exceptions it sees.

usage: anthropic_sdk.py BASE_URL MODEL [CASE …]    e.g. anthropic_sdk.py http://127.0.0.1:8080 demo
"""

import asyncio
import sys
import unittest

import anthropic

BASE = MODEL = ""

QUESTION = [{"role": "user", "content": "How high is the water?"}]

TOOLS = [
    {
        "name": "gate_level",
        "description": "Level of a gate.",
        "input_schema": {"type": "object", "properties": {"gate": {"type": "string"}}, "required": ["gate"]},
    }
]


def client(**options) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=BASE, api_key="unused", max_retries=0, timeout=60, **options)


def message(**fields):
    return client().messages.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": 12} | fields)


class Sdk(unittest.TestCase):
    def test_message(self):
        answer = message(system="You watch the gates.")
        self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", MODEL))
        self.assertTrue(answer.content[0].text)
        self.assertEqual(answer.stop_reason, "max_tokens")
        self.assertEqual(answer.usage.output_tokens, 12)

    def test_second_time_is_cached(self):
        messages = [{"role": "user", "content": "A long story about a river. " * 60}]
        first, second = message(messages=messages), message(messages=messages)
        total = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
        self.assertEqual(total(first.usage), total(second.usage))
        self.assertGreater(second.usage.cache_read_input_tokens, total(second.usage) * 0.9)

    def test_stream(self):
        with client().messages.stream(model=MODEL, messages=QUESTION, max_tokens=12) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertTrue(text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("max_tokens", 12))

    def test_raw_stream_has_its_events_in_order(self):
        kinds = [event.type for event in message(stream=True)]
        self.assertEqual((kinds[0], kinds[-1]), ("message_start", "message_stop"))
        order = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
        expected = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
        self.assertEqual([kind for kind in order if kind != "ping"], expected)

    def test_stream_equals_whole(self):
        whole = message().content[0].text
        with client().messages.stream(model=MODEL, messages=QUESTION, max_tokens=12) as stream:
            self.assertEqual("".join(stream.text_stream), whole)

    def test_tools(self):
        messages = QUESTION + [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "gate_level", "input": {"gate": "north"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3.2"}]},
        ]
        plain, tooled = message(), message(messages=messages, tools=TOOLS)
        self.assertTrue(tooled.content[0].text)
        self.assertGreater(tooled.usage.input_tokens, plain.usage.input_tokens + 40)

    def test_count_tokens_is_what_a_message_takes(self):
        counted = client().messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.").input_tokens
        usage = message(system="Be brief.").usage
        self.assertEqual(counted, usage.input_tokens + (usage.cache_read_input_tokens or 0))

    def test_many_at_once(self):
        async def ask(number: int) -> str:
            asked = [{"role": "user", "content": f"Number {number}"}]
            answer = await caller.messages.create(model=MODEL, messages=asked, max_tokens=4)
            return answer.content[0].text

        async def all_of_them() -> list[str]:
            return await asyncio.gather(*(ask(number) for number in range(40)))

        caller = anthropic.AsyncAnthropic(base_url=BASE, api_key="unused", max_retries=0, timeout=60)
        self.assertTrue(all(asyncio.run(all_of_them())))

    def test_leaving_a_stream_leaves_the_gateway_well(self):
        for _ in range(3):
            stream = message(stream=True, max_tokens=2000)
            next(iter(stream))
            stream.close()
        self.assertTrue(message().content[0].text)

    def test_unknown_fields_and_headers_pass(self):
        answer = message(
            metadata={"user_id": "user_1_account_2_session_3"},
            extra_body={"anything": [1, {"a": None}]},
            extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14"},
        )
        self.assertTrue(answer.content[0].text)

    def test_unknown_model_is_not_found(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            message(model="nobody")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        self.assertIn("nobody", caught.exception.message)

    def test_wrong_type_is_bad_request(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            message(extra_body={"max_tokens": "many"})
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("max_tokens", str(caught.exception))

    def test_too_long_is_the_engines_own_error(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            message(max_tokens=100_000_000)
        self.assertTrue(caught.exception.body["error"]["message"])


if __name__ == "__main__":
    BASE, MODEL = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *(f"Sdk.{case}" for case in sys.argv[3:])], verbosity=2)

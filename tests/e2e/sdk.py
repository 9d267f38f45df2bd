#!/usr/bin/env python3
"""The official OpenAI SDK against a running gateway: what a user's program does, and which exceptions it sees.

usage: sdk.py BASE_URL MODEL [CASE …]    e.g. sdk.py http://127.0.0.1:8080 demo
"""

import asyncio
import json
import sys
import unittest
import urllib.error
import urllib.request

import openai

BASE = MODEL = ""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "gate_level",
            "description": "Level of a gate.",
            "parameters": {"type": "object", "properties": {"gate": {"type": "string"}}, "required": ["gate"]},
        },
    }
]


def client(**options) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=60, **options)


def chat(**fields):
    return client().chat.completions.create(
        **{"model": MODEL, "messages": [{"role": "user", "content": "How high is the water?"}], "max_tokens": 12} | fields
    )


class Sdk(unittest.TestCase):
    def test_chat(self):
        answer = chat()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, MODEL)
        self.assertTrue(answer.choices[0].message.content)
        self.assertIn(answer.choices[0].finish_reason, ("length", "stop"))
        self.assertGreater(answer.usage.prompt_tokens, 0)
        self.assertEqual(answer.usage.completion_tokens, 12)

    def test_second_time_is_cached(self):
        messages = [{"role": "user", "content": "A long story about a river. " * 60}]
        first, second = chat(messages=messages), chat(messages=messages)
        self.assertEqual(first.usage.prompt_tokens, second.usage.prompt_tokens)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, second.usage.prompt_tokens * 0.9)

    def test_stream_without_usage(self):
        chunks = list(chat(stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertTrue(text)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertTrue(any(chunk.choices[0].finish_reason for chunk in chunks))
        # The gateway asks the engine for usage; a client that did not must see neither usage nor the extra chunk.
        self.assertTrue(all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks))

    def test_stream_with_usage(self):
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)
        self.assertEqual(sum(chunk.usage is not None for chunk in chunks), 1)

    def test_stream_equals_whole(self):
        messages = [{"role": "user", "content": "Say the same thing twice."}]
        whole = chat(messages=messages, temperature=0).choices[0].message.content
        chunks = chat(messages=messages, temperature=0, stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole)

    def test_tools(self):
        messages = [
            {"role": "system", "content": "You watch the gates."},
            {"role": "user", "content": "How high is the water?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call-1", "type": "function", "function": {"name": "gate_level", "arguments": '{"gate": "north"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "call-1", "content": "3.2"},
        ]
        plain = chat(messages=messages[:2])
        tooled = chat(messages=messages, tools=TOOLS)
        self.assertTrue(tooled.choices[0].message.content)
        self.assertGreater(tooled.usage.prompt_tokens, plain.usage.prompt_tokens + 40)

    def test_completions(self):
        answer = client().completions.create(model=MODEL, prompt="Once upon a river", max_tokens=7)
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 7)

    def test_completions_stream(self):
        stream = client().completions.create(model=MODEL, prompt="Once upon a river", max_tokens=7, stream=True)
        self.assertTrue("".join(chunk.choices[0].text for chunk in stream))

    def test_responses(self):
        answer = client().responses.create(model=MODEL, input="How high is the water?", max_output_tokens=12)
        self.assertEqual((answer.object, answer.status), ("response", "incomplete"))
        self.assertTrue(answer.output_text)
        self.assertEqual(answer.usage.output_tokens, 12)

    def test_responses_stream(self):
        asked = {"model": MODEL, "input": [{"role": "user", "content": "How high is the water?"}], "max_output_tokens": 12}
        with client().responses.stream(**asked) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertTrue(text)
        self.assertEqual((final.output_text, final.usage.output_tokens), (text, 12))

    def test_embeddings(self):
        # The SDK asks for base64 and decodes it.
        answer = client().embeddings.create(model=MODEL, input=["a river", "a dam"])
        self.assertEqual([len(one.embedding) for one in answer.data], [8, 8])
        plain = client().embeddings.create(model=MODEL, input="a river", encoding_format="float")
        for one, other in zip(answer.data[0].embedding, plain.data[0].embedding):
            self.assertAlmostEqual(one, other, places=6)

    def test_models(self):
        models = client().models.list()
        self.assertIn(MODEL, [model.id for model in models])

    def test_unknown_fields_pass(self):
        answer = chat(extra_body={"cache_salt": "tenant-7", "vllm_xargs": {"anything": 1}, "füld": [1, {"a": None}]})
        self.assertTrue(answer.choices[0].message.content)

    def test_request_id(self):
        answer = client().chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "id?"}], max_tokens=2, extra_headers={"x-request-id": "mine-1"}
        )
        self.assertEqual(answer.headers["x-request-id"], "mine-1")

    def test_many_at_once(self):
        async def ask(number: int) -> str:
            answer = await caller.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": f"Number {number}"}], max_tokens=4
            )
            return answer.choices[0].message.content

        async def all_of_them() -> list[str]:
            return await asyncio.gather(*(ask(number) for number in range(40)))

        caller = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=60)
        self.assertTrue(all(asyncio.run(all_of_them())))

    def test_leaving_a_stream_leaves_the_gateway_well(self):
        for _ in range(3):
            stream = chat(stream=True, max_tokens=2000)
            next(iter(stream))
            stream.close()
        self.assertTrue(chat().choices[0].message.content)

    def test_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            chat(model="nobody")
        self.assertIn("nobody", caught.exception.message)
        self.assertEqual(caught.exception.status_code, 404)

    def test_wrong_type_is_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(extra_body={"max_tokens": "many"})
        self.assertIn("max_tokens", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(extra_body={"messages": "hello"})
        self.assertIn("messages", str(caught.exception))

    def test_too_long_prompt_is_the_engines_own_error(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(max_tokens=100_000_000)
        self.assertTrue(caught.exception.body["message"])

    def test_unknown_route_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            client().post("/nowhere", body={}, cast_to=object)

    def test_error_shape(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(f"{BASE}/v1/chat/completions", b"{"))
        self.assertEqual(caught.exception.code, 400)
        error = json.load(caught.exception)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["code"], 400)


if __name__ == "__main__":
    BASE, MODEL = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *(f"Sdk.{case}" for case in sys.argv[3:])], verbosity=2)

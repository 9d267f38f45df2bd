//! OpenAI's Responses, as vLLM serves them. Nothing is stored: an earlier response cannot be gone on from.

use super::reply::{Choice, Envelope};
use super::voice::{Frame, New, Voice, text_of};
use crate::model::FinishReason;
use crate::rank::Progress;
use serde_json::{Value, json};

pub(super) struct Responses<'a> {
    envelope: Envelope<'a>,
    item: String,
    open: bool,
    next: u32,
}

impl<'a> Responses<'a> {
    pub(super) fn new(envelope: Envelope<'a>) -> Self {
        let item = envelope.id.replacen("resp_", "msg_", 1);
        Self { envelope, item, open: false, next: 0 }
    }

    fn frame(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["sequence_number"] = self.next.into();
        self.next += 1;
        Frame::named(event, data)
    }

    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        let incomplete = if status == "incomplete" { json!({ "reason": "max_output_tokens" }) } else { Value::Null };
        json!({
            "id": self.envelope.id, "object": "response", "created_at": self.envelope.created, "status": status,
            "incomplete_details": incomplete, "instructions": null, "metadata": null, "model": self.envelope.call.model,
            "output": output, "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "background": false, "max_output_tokens": null, "previous_response_id": null,
            "reasoning": null, "service_tier": "auto", "text": null, "truncation": "disabled", "usage": usage,
            "user": null, "error": null,
        })
    }

    fn message(&self, status: &str, content: Value) -> Value {
        json!({ "id": self.item, "type": "message", "role": "assistant", "status": status, "content": content })
    }

    fn usage(&self, states: &[Progress]) -> Value {
        let prompt = self.envelope.call.prompts[0].len();
        let cached = if self.envelope.details { self.envelope.cached(states) } else { 0 };
        let produced = states[0].produced;
        json!({
            "input_tokens": self.envelope.told(prompt),
            "input_tokens_details": { "cached_tokens": self.envelope.told(cached) },
            "output_tokens": self.envelope.told(produced),
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.envelope.told(prompt + produced),
        })
    }

    fn at(&self, mut data: Value) -> Value {
        data["item_id"] = self.item.clone().into();
        data["output_index"] = 0.into();
        data["content_index"] = 0.into();
        data
    }
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": null })
}

/// A limit of tokens leaves a response incomplete.
fn status(finish: Option<FinishReason>) -> &'static str {
    if finish == Some(FinishReason::Length) { "incomplete" } else { "completed" }
}

impl Voice for Responses<'_> {
    fn begin(&mut self) -> Vec<Frame> {
        let response = json!({ "response": self.response("in_progress", json!([]), Value::Null) });
        vec![self.frame("response.created", response.clone()), self.frame("response.in_progress", response)]
    }

    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !std::mem::replace(&mut self.open, true) {
            let item = json!({ "output_index": 0, "item": self.message("in_progress", json!([])) });
            frames.push(self.frame("response.output_item.added", item));
            let part = self.at(json!({ "part": part("") }));
            frames.push(self.frame("response.content_part.added", part));
        }
        let text = new.text();
        // The token that ends a text has none of its own.
        if !text.is_empty() {
            let delta = self.at(json!({ "delta": text, "logprobs": [] }));
            frames.push(self.frame("response.output_text.delta", delta));
        }
        frames
    }

    fn end(&mut self, choices: &[Choice], states: &[Progress]) -> Vec<Frame> {
        let text = text_of(&choices[0]);
        let status = status(states[0].finish);
        let whole = self.at(json!({ "text": text, "logprobs": [] }));
        let done = self.at(json!({ "part": part(&text) }));
        let message = self.message(status, json!([part(&text)]));
        let response = self.response(status, json!([message]), self.usage(states));
        vec![
            self.frame("response.output_text.done", whole),
            self.frame("response.content_part.done", done),
            self.frame("response.output_item.done", json!({ "output_index": 0, "item": message })),
            // By this name even where a limit left it incomplete.
            self.frame("response.completed", json!({ "response": response })),
        ]
    }

    fn says_done(&self) -> bool {
        false
    }

    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        let status = status(states[0].finish);
        let message = self.message(status, json!([part(&text_of(&choices[0]))]));
        self.response(status, json!([message]), self.usage(states))
    }
}

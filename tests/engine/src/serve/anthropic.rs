//! Anthropic's Messages, as vLLM serves them.

use super::parse::Call;
use super::reply::{Choice, Envelope};
use super::voice::{Frame, New, Voice, text_of};
use crate::model::FinishReason;
use crate::rank::Progress;
use serde_json::{Value, json};

pub(super) struct Anthropic<'a> {
    envelope: Envelope<'a>,
    open: bool,
}

impl<'a> Anthropic<'a> {
    pub(super) fn new(envelope: Envelope<'a>) -> Self {
        Self { envelope, open: false }
    }

    fn call(&self) -> &Call {
        self.envelope.call
    }

    /// `input_tokens` are those that were not in the cache.
    fn usage(&self, states: &[Progress], produced: usize) -> Value {
        let prompt: usize = self.call().prompts.iter().map(|prompt| prompt.len()).sum();
        let cached = if self.envelope.details { self.envelope.cached(states) } else { 0 };
        let mut usage = json!({
            "input_tokens": self.envelope.told(prompt.saturating_sub(cached)),
            "output_tokens": self.envelope.told(produced),
        });
        if self.envelope.details {
            usage["cache_creation_input_tokens"] = 0.into();
            usage["cache_read_input_tokens"] = self.envelope.told(cached).into();
        }
        usage
    }

    fn message(&self, content: Value, usage: Value) -> Value {
        json!({
            "id": self.envelope.id, "type": "message", "role": "assistant", "content": content,
            "model": self.call().model, "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }
}

fn stop_reason(choice: &Choice, finish: Option<FinishReason>) -> &'static str {
    match finish {
        Some(FinishReason::Length) => "max_tokens",
        _ if choice.output.stop.is_some() => "stop_sequence",
        _ => "end_turn",
    }
}

impl Voice for Anthropic<'_> {
    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !std::mem::replace(&mut self.open, true) {
            let prompt = self.call().prompts[0].len();
            let usage = json!({ "input_tokens": self.envelope.told(prompt), "output_tokens": 0 });
            frames.push(Frame::named("message_start", json!({ "message": self.message(json!([]), usage) })));
            let block = json!({ "index": 0, "content_block": { "type": "text", "text": "" } });
            frames.push(Frame::named("content_block_start", block));
        }
        let delta = json!({ "index": 0, "delta": { "type": "text_delta", "text": new.text() } });
        frames.push(Frame::named("content_block_delta", delta));
        frames
    }

    fn end(&mut self, choices: &[Choice], states: &[Progress]) -> Vec<Frame> {
        let (choice, state) = (&choices[0], &states[0]);
        let delta = json!({ "stop_reason": stop_reason(choice, state.finish), "stop_sequence": choice.output.stop });
        let usage = self.usage(states, state.produced);
        vec![
            Frame::named("content_block_stop", json!({ "index": 0 })),
            Frame::named("message_delta", json!({ "delta": delta, "usage": usage })),
            Frame::named("message_stop", json!({})),
        ]
    }

    fn says_done(&self) -> bool {
        false
    }

    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        let (choice, state) = (&choices[0], &states[0]);
        let content = json!([{ "type": "text", "text": text_of(choice) }]);
        let mut message = self.message(content, self.usage(states, state.produced));
        message["stop_reason"] = stop_reason(choice, state.finish).into();
        message["stop_sequence"] = json!(choice.output.stop);
        message
    }
}

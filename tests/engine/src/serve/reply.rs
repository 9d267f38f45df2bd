//! The JSON of answers and chunks, field by field as vLLM writes it.

use super::parse::Call;
use super::route::Route;
use super::voice::{Frame, New, Voice, text_of};
use crate::model::FinishReason;
use crate::rank::Progress;
use crate::text::Output;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What all chunks and answers of one call share.
pub(super) struct Envelope<'a> {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) call: &'a Call,
    pub(super) block_tokens: usize,
    /// Report `prompt_tokens_details`.
    pub(super) details: bool,
    /// A lie: added to every count.
    pub(super) counts_off_by: i64,
}

/// One choice as far as it was sent.
pub(super) struct Choice {
    pub(super) output: Output,
    pub(super) sent: usize,
    pub(super) ended: bool,
}

impl Envelope<'_> {
    /// `usage` without details.
    fn counts(&self, completion: usize) -> Value {
        let prompt: usize = self.call.prompts.iter().map(|prompt| prompt.len()).sum();
        json!({
            "prompt_tokens": self.told(prompt),
            "total_tokens": self.told(prompt + completion),
            "completion_tokens": self.told(completion),
        })
    }

    /// A count as it is told.
    pub(super) fn told(&self, count: usize) -> i64 {
        (count as i64 + self.counts_off_by).max(0)
    }

    fn details(&self, cached: usize) -> Value {
        json!({ "cached_tokens": self.told(cached) })
    }

    /// Prompt tokens that became cached with this call; reported for chats only.
    fn created_tokens(&self, cached: usize) -> Value {
        if self.call.route != Route::Chat {
            return Value::Null;
        }
        let whole: usize = self.call.prompts.iter().map(|p| p.len() / self.block_tokens * self.block_tokens).sum();
        whole.saturating_sub(cached).into()
    }

    /// Cached tokens of the call: each prompt counts once, by its first choice.
    pub(super) fn cached(&self, states: &[Progress]) -> usize {
        states.iter().step_by(self.call.choices).map(|state| state.cached_tokens).sum()
    }

    /// The usage that ends a stream.
    pub(super) fn last_usage(&self, states: &[Progress]) -> Value {
        let mut usage = self.counts(states.iter().map(|state| state.produced).sum());
        if self.details {
            let cached = self.cached(states);
            usage["prompt_tokens_details"] = self.details(cached);
            if self.call.route == Route::Chat {
                usage["prompt_tokens_details"]["created_cache_tokens"] = self.created_tokens(cached);
            }
        }
        usage
    }

    fn head(&self, kind: &str) -> Value {
        json!({ "id": self.id, "object": kind, "created": self.created, "model": self.call.model })
    }

    fn chunk_kind(&self) -> &'static str {
        match self.call.route {
            Route::Chat => "chat.completion.chunk",
            _ => "text_completion",
        }
    }

    fn chunk(&self, choices: Value, produced: usize) -> Value {
        let mut chunk = self.head(self.chunk_kind());
        chunk["choices"] = choices;
        if self.call.continuous_usage {
            let mut usage = self.counts(produced);
            usage["completion_tokens_details"] = Value::Null;
            chunk["usage"] = usage;
        }
        chunk
    }

    /// A chat's first chunk: the role.
    fn role_chunk(&self, index: usize) -> Value {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
        let mut chunk = self.chunk(json!([choice]), 0);
        chunk["prompt_token_ids"] =
            if self.call.return_token_ids { json!(&*self.call.prompts[0]) } else { Value::Null };
        chunk["prompt_text"] = Value::Null;
        chunk
    }

    /// New tokens of a choice.
    fn token_chunk(&self, new: &New<'_>) -> Value {
        let (text, call, choice) = (new.text(), self.call, new.choice);
        let token_ids = if call.return_token_ids { json!(new.ids()) } else { Value::Null };
        let stop = new.finish.and(choice.output.stop.clone());
        let mut out = match call.route {
            Route::Chat => json!({ "index": new.index, "delta": { "content": text }, "logprobs": null }),
            _ => json!({ "index": new.index, "text": text, "logprobs": null }),
        };
        out["finish_reason"] = json!(new.finish.map(FinishReason::as_str));
        if new.finish.is_some() || call.route == Route::Completion {
            out["stop_reason"] = json!(stop);
        }
        if call.route == Route::Completion {
            let first = call.return_token_ids && choice.sent == 0;
            let prompt = &call.prompts[new.index / call.choices];
            out["prompt_token_ids"] = if first { json!(&**prompt) } else { Value::Null };
        }
        out["token_ids"] = token_ids;
        self.chunk(json!([out]), new.produced())
    }

    /// The chunk that carries usage alone.
    fn usage_chunk(&self, states: &[Progress]) -> Value {
        let mut chunk = self.head(self.chunk_kind());
        chunk["choices"] = json!([]);
        chunk["usage"] = self.last_usage(states);
        chunk["system_fingerprint"] = json!(fingerprint(&self.call.model));
        chunk
    }

    /// The answer that is not streamed.
    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        let chat = self.call.route == Route::Chat;
        let mut answer = self.head(if chat { "chat.completion" } else { "text_completion" });
        let one = |(index, (choice, state)): (usize, (&Choice, &Progress))| self.whole_choice(index, choice, state);
        answer["choices"] = choices.iter().zip(states).enumerate().map(one).collect();
        answer["service_tier"] = Value::Null;
        answer["system_fingerprint"] = json!(fingerprint(&self.call.model));
        let mut usage = self.counts(states.iter().map(|state| state.produced).sum());
        usage["prompt_tokens_details"] = Value::Null;
        if self.details {
            let cached = self.cached(states);
            let mut details = self.details(cached);
            details["created_cache_tokens"] = self.created_tokens(cached);
            details["multimodal_tokens"] = Value::Null;
            usage["prompt_tokens_details"] = details;
        }
        usage["completion_tokens_details"] = Value::Null;
        answer["usage"] = usage;
        if chat {
            answer["prompt_logprobs"] = Value::Null;
            answer["prompt_token_ids"] =
                if self.call.return_token_ids { json!(&*self.call.prompts[0]) } else { Value::Null };
            answer["prompt_text"] = Value::Null;
        }
        for name in ["kv_transfer_params", "ec_transfer_params", "metrics"] {
            answer[name] = Value::Null;
        }
        answer
    }

    fn whole_choice(&self, index: usize, choice: &Choice, state: &Progress) -> Value {
        let output = &choice.output;
        let text = text_of(choice);
        let finish = state.finish.map(FinishReason::as_str);
        let token_ids = if self.call.return_token_ids { json!(&*output.ids) } else { Value::Null };
        if self.call.route == Route::Chat {
            let message = json!({
                "role": "assistant", "content": text, "refusal": null, "annotations": null, "audio": null,
                "function_call": null, "reasoning": null,
            });
            return json!({
                "index": index, "message": message, "logprobs": null, "finish_reason": finish,
                "stop_reason": output.stop, "token_ids": token_ids, "routed_experts": null,
            });
        }
        let prompt = &self.call.prompts[index / self.call.choices];
        let prompt_ids = if self.call.return_token_ids { json!(&**prompt) } else { Value::Null };
        json!({
            "index": index, "text": text, "logprobs": null, "finish_reason": finish, "stop_reason": output.stop,
            "token_ids": token_ids, "prompt_logprobs": null, "prompt_token_ids": prompt_ids, "routed_experts": null,
        })
    }
}

/// OpenAI's chats and completions.
pub(super) struct OpenAi<'a>(pub(super) Envelope<'a>);

impl Voice for OpenAi<'_> {
    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame> {
        let role = self.0.call.route == Route::Chat && new.choice.sent == 0;
        let role = role.then(|| self.0.role_chunk(new.index));
        role.into_iter().chain([self.0.token_chunk(new)]).map(Frame::data).collect()
    }

    fn end(&mut self, _: &[Choice], states: &[Progress]) -> Vec<Frame> {
        let usage = self.0.call.include_usage.then(|| self.0.usage_chunk(states));
        usage.into_iter().map(Frame::data).collect()
    }

    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        self.0.whole(choices, states)
    }
}

/// A call's id: the client's request id where it sent one.
pub(super) fn call_id(route: Route, given: Option<String>, number: u64, started: f64) -> String {
    let id = given.unwrap_or_else(|| format!("{:016x}", digest(&(number, started.to_bits()))));
    match route {
        Route::Chat | Route::Messages => format!("chatcmpl-{id}"),
        Route::Completion => format!("cmpl-{id}"),
        Route::Responses => format!("resp_{id}"),
        Route::Generate => id,
        Route::TokensIn => format!("generate-tokens-{id}"),
    }
}

fn fingerprint(model: &str) -> String {
    format!("vllm-{}-{:08x}", super::info::VERSION, digest(&model) as u32)
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

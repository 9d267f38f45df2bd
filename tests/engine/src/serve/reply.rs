//! The JSON of answers and chunks, field by field as vLLM writes it.

use super::parse::{Call, Route};
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
        let lie = |count: usize| (count as i64 + self.counts_off_by).max(0);
        json!({
            "prompt_tokens": lie(prompt),
            "total_tokens": lie(prompt + completion),
            "completion_tokens": lie(completion),
        })
    }

    fn details(&self, cached: usize) -> Value {
        let lie = |count: usize| (count as i64 + self.counts_off_by).max(0);
        json!({ "cached_tokens": lie(cached) })
    }

    /// Prompt tokens that became cached with this call; reported for chats only.
    fn created_tokens(&self, cached: usize) -> Value {
        if self.call.route == Route::Completion {
            return Value::Null;
        }
        let whole: usize = self.call.prompts.iter().map(|p| p.len() / self.block_tokens * self.block_tokens).sum();
        whole.saturating_sub(cached).into()
    }

    /// Cached tokens of the call: each prompt counts once, by its first choice.
    fn cached(&self, states: &[Progress]) -> usize {
        states.iter().step_by(self.call.choices).map(|state| state.cached_tokens).sum()
    }

    /// The usage that ends a stream.
    fn last_usage(&self, states: &[Progress]) -> Value {
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
            Route::Completion => "text_completion",
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
    pub(super) fn role_chunk(&self, index: usize) -> Value {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
        let mut chunk = self.chunk(json!([choice]), 0);
        chunk["prompt_token_ids"] =
            if self.call.return_token_ids { json!(&*self.call.prompts[0]) } else { Value::Null };
        chunk["prompt_text"] = Value::Null;
        chunk
    }

    /// Tokens `sent..upto` of a choice; the last of them when `finish` is set.
    pub(super) fn token_chunk(
        &self,
        index: usize,
        choice: &Choice,
        upto: usize,
        finish: Option<FinishReason>,
        produced: usize,
    ) -> Value {
        let text: String = choice.output.texts[choice.sent..upto].iter().map(|text| &**text).collect();
        let ids = &choice.output.ids[choice.sent..upto];
        let token_ids = if self.call.return_token_ids { json!(ids) } else { Value::Null };
        let stop = finish.and(choice.output.stop.clone());
        let mut out = match self.call.route {
            Route::Chat => json!({ "index": index, "delta": { "content": text }, "logprobs": null }),
            Route::Completion => json!({ "index": index, "text": text, "logprobs": null }),
        };
        out["finish_reason"] = json!(finish.map(FinishReason::as_str));
        if finish.is_some() || self.call.route == Route::Completion {
            out["stop_reason"] = json!(stop);
        }
        if self.call.route == Route::Completion {
            let first = self.call.return_token_ids && choice.sent == 0;
            let prompt = &self.call.prompts[index / self.call.choices];
            out["prompt_token_ids"] = if first { json!(&**prompt) } else { Value::Null };
        }
        out["token_ids"] = token_ids;
        self.chunk(json!([out]), produced)
    }

    /// The chunk that carries usage alone.
    pub(super) fn usage_chunk(&self, states: &[Progress]) -> Value {
        let mut chunk = self.head(self.chunk_kind());
        chunk["choices"] = json!([]);
        chunk["usage"] = self.last_usage(states);
        chunk["system_fingerprint"] = json!(fingerprint(&self.call.model));
        chunk
    }

    /// The answer that is not streamed.
    pub(super) fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
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
        let text: String = output.texts.iter().map(|text| &**text).collect();
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

/// A call's id: the client's request id where it sent one.
pub(super) fn call_id(route: Route, given: Option<String>, number: u64, started: f64) -> String {
    let prefix = match route {
        Route::Chat => "chatcmpl",
        Route::Completion => "cmpl",
    };
    match given {
        Some(given) => format!("{prefix}-{given}"),
        None => format!("{prefix}-{:016x}", digest(&(number, started.to_bits()))),
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

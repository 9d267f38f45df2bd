//! The engines' own routes: SGLang's `/generate`, vLLM's ids in, ids out.

use super::reply::{Choice, Envelope};
use super::voice::{Frame, New, Voice, text_of};
use crate::model::FinishReason;
use crate::rank::Progress;
use serde_json::{Value, json};

/// SGLang's `/generate`. Streams carry the text so far.
pub(super) struct Generate<'a>(pub(super) Envelope<'a>);

impl Generate<'_> {
    fn answer(&self, index: usize, choice: &Choice, upto: usize, state: &Progress) -> Value {
        let text: String = choice.output.texts[..upto].iter().map(|text| &**text).collect();
        let finish =
            state.finish.filter(|_| upto == state.produced).map(|finish| match (finish, &choice.output.stop) {
                (FinishReason::Length, _) => json!({ "type": "length", "length": upto }),
                (FinishReason::Stop, Some(stop)) => json!({ "type": "stop", "matched": stop }),
                (FinishReason::Stop, None) => json!({ "type": "stop", "matched": choice.output.ids.last() }),
            });
        let prompt = self.0.call.prompts[index / self.0.call.choices].len();
        json!({
            "text": text, "output_ids": &choice.output.ids[..upto],
            "meta_info": {
                "id": self.0.id, "finish_reason": finish, "prompt_tokens": self.0.told(prompt),
                "weight_version": "default", "completion_tokens": self.0.told(upto),
                "cached_tokens": self.0.told(state.cached_tokens), "e2e_latency": 0.0,
            },
        })
    }

    /// Several prompts or choices.
    fn is_batch(&self) -> bool {
        self.0.call.prompts.len() * self.0.call.choices > 1
    }
}

impl Voice for Generate<'_> {
    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame> {
        let mut answer = self.answer(new.index, new.choice, new.upto, &new.states[new.index]);
        if self.is_batch() {
            answer["index"] = new.index.into();
        }
        vec![Frame::data(answer)]
    }

    fn end(&mut self, _: &[Choice], _: &[Progress]) -> Vec<Frame> {
        Vec::new()
    }

    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        let one =
            |(index, (choice, state)): (usize, (&Choice, &Progress))| self.answer(index, choice, state.produced, state);
        let mut all: Vec<Value> = choices.iter().zip(states).enumerate().map(one).collect();
        if self.is_batch() { all.into() } else { all.remove(0) }
    }
}

/// vLLM's `/inference/v1/generate`.
pub(super) struct TokensIn<'a>(pub(super) Envelope<'a>);

impl TokensIn<'_> {
    fn head(&self, choices: Value, usage: Value) -> Value {
        json!({ "request_id": self.0.id, "usage": usage, "output_mode": "tokens", "choices": choices })
    }
}

impl Voice for TokensIn<'_> {
    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame> {
        let finish = new.finish.map(FinishReason::as_str);
        let choice = json!({ "index": new.index, "logprobs": null, "finish_reason": finish, "token_ids": new.ids() });
        vec![Frame::data(self.head(json!([choice]), Value::Null))]
    }

    fn end(&mut self, _: &[Choice], states: &[Progress]) -> Vec<Frame> {
        if !self.0.call.include_usage {
            return Vec::new();
        }
        vec![Frame::data(self.head(json!([]), self.0.last_usage(states)))]
    }

    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value {
        let one = |(index, (choice, state)): (usize, (&Choice, &Progress))| {
            let finish = state.finish.map(FinishReason::as_str);
            json!({
                "index": index, "logprobs": null, "finish_reason": finish, "token_ids": &*choice.output.ids,
                "text": text_of(choice),
            })
        };
        let all = choices.iter().zip(states).enumerate().map(one).collect();
        let mut answer = self.head(all, self.0.last_usage(states));
        answer["prompt_logprobs"] = Value::Null;
        answer["kv_transfer_params"] = Value::Null;
        answer
    }
}

//! How a dialect tells what was generated: as frames of a stream, or whole.

use super::parse::Call;
use super::reply::{Choice, Envelope, OpenAi};
use super::route::Route;
use super::{anthropic, native, responses};
use crate::model::FinishReason;
use crate::rank::Progress;
use serde_json::Value;

/// One server-sent event.
pub(super) struct Frame {
    pub(super) event: Option<&'static str>,
    pub(super) data: Value,
}

impl Frame {
    /// Data without a name.
    pub(super) fn data(data: Value) -> Self {
        Self { event: None, data }
    }

    /// An event whose data says its name again, as OpenAI's and Anthropic's do.
    pub(super) fn named(event: &'static str, mut data: Value) -> Self {
        let mut named = serde_json::json!({ "type": event });
        if let (Value::Object(named), Value::Object(data)) = (&mut named, &mut data) {
            named.append(data);
        }
        Self { event: Some(event), data: named }
    }

    pub(super) fn text(&self) -> String {
        match self.event {
            Some(event) => format!("event: {event}\ndata: {}\n\n", self.data),
            None => format!("data: {}\n\n", self.data),
        }
    }
}

/// What a step revealed of one choice: tokens from `choice.sent` to `upto`.
pub(super) struct New<'a> {
    pub(super) index: usize,
    pub(super) choice: &'a Choice,
    pub(super) upto: usize,
    /// Set with the last of them.
    pub(super) finish: Option<FinishReason>,
    pub(super) states: &'a [Progress],
}

impl New<'_> {
    /// Their text.
    pub(super) fn text(&self) -> String {
        self.choice.output.texts[self.choice.sent..self.upto].iter().map(|text| &**text).collect()
    }

    /// Their ids.
    pub(super) fn ids(&self) -> &[u32] {
        &self.choice.output.ids[self.choice.sent..self.upto]
    }

    /// Tokens of all choices so far.
    pub(super) fn produced(&self) -> usize {
        self.states.iter().map(|state| state.produced).sum()
    }
}

/// A dialect, for one call.
pub(super) trait Voice: Send {
    /// Frames that come with the head.
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    /// Frames for some tokens of a choice.
    fn tokens(&mut self, new: &New<'_>) -> Vec<Frame>;

    /// Frames after all choices have ended.
    fn end(&mut self, choices: &[Choice], states: &[Progress]) -> Vec<Frame>;

    /// Whether `[DONE]` follows.
    fn says_done(&self) -> bool {
        true
    }

    /// The answer that is not streamed.
    fn whole(&self, choices: &[Choice], states: &[Progress]) -> Value;
}

/// The voice of a call.
pub(super) fn of<'a>(call: &'a Call, envelope: Envelope<'a>) -> Box<dyn Voice + 'a> {
    match call.route {
        Route::Chat | Route::Completion => Box::new(OpenAi(envelope)),
        Route::Messages => Box::new(anthropic::Anthropic::new(envelope)),
        Route::Responses => Box::new(responses::Responses::new(envelope)),
        Route::Generate => Box::new(native::Generate(envelope)),
        Route::TokensIn => Box::new(native::TokensIn(envelope)),
    }
}

/// Text of a whole choice.
pub(super) fn text_of(choice: &Choice) -> String {
    choice.output.texts.iter().map(|text| &**text).collect()
}

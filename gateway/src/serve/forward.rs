//! Token ids in the place of a prompt's text: the engine then skips its own tokenising, some 100 ms of CPU for 400 KB.
//!
//! Only where the model's configuration asks for it, the ids come from the local tokenizer, the engine that is sent to was
//! shown to make the same ones of every probe, and the shape is one that its route takes ids for. Everything else goes out
//! as it came.

use super::{Considered, Gateway};
use crate::dispatch::Ids;
use crate::fleet::{Endpoint, EngineKind};
use crate::parse::{Dialect, IdsPlace, Parsed};
use crate::tokenize::{Outcome, Shape};

impl Gateway {
    /// What is needed to send `parsed`'s ids, where that may be done at all.
    pub(super) fn forwarded<'a>(&'a self, parsed: &'a Parsed, considered: &Considered) -> Option<Ids<'a>> {
        if !self.forwards_ids(&considered.tokenizer) {
            return None;
        }
        let Some(Outcome::Tokens(ids)) = &considered.tokens else { return None };
        let shape = shape(parsed)?;
        let (tokenizer, ids) = (considered.tokenizer.clone(), ids.clone());
        Some(Ids {
            write: Box::new(move |endpoint: &Endpoint| {
                let place = place(parsed.dialect, endpoint.kind)?;
                let proven = self.tokenizers.is_proven(&tokenizer, &endpoint.url, shape);
                self.tokenizers.count_forwarded(proven);
                proven.then(|| parsed.body_with_ids(place, &ids))
            }),
        })
    }
}

/// Where an engine of this kind takes ids.
fn place(dialect: Dialect, kind: EngineKind) -> Option<IdsPlace> {
    match (dialect, kind) {
        (Dialect::Completions, EngineKind::Vllm | EngineKind::SgLang) => Some(IdsPlace::Prompt),
        (Dialect::Generate, EngineKind::SgLang) => Some(IdsPlace::InsteadOfText("input_ids")),
        (Dialect::Chat, EngineKind::SgLang) => Some(IdsPlace::Beside("input_ids")),
        // vLLM's chats take none, and TensorRT-LLM (`prompt_token_ids`) has no /tokenize that could prove them.
        _ => None,
    }
}

/// What must be proven of a prompt; `None` for one that is sent as it is.
fn shape(parsed: &Parsed) -> Option<Shape> {
    let text = parsed.body.get(parsed.prompt.start) == Some(&b'"');
    match parsed.dialect {
        // An echoed prompt would be what the ids decode to.
        Dialect::Completions if text && parsed.template_span("echo").is_none() => Some(Shape::Prompt),
        Dialect::Generate if text => Some(Shape::Prompt),
        // Tools and template arguments are rendered by each engine in its own way.
        Dialect::Chat if parsed.tools.is_none() && parsed.template_fields.is_empty() => Some(Shape::Chat),
        _ => None,
    }
}

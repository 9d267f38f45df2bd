//! What four engines could do with the workload if nothing were ever cached: the measure of "offered load".
//!
//! The mock engine's own scheduler says it, in virtual time: every request is queued at once, no two share a prefix, and the
//! engine works until the queue is empty.

use crate::process::Failure;
use forebay_engine::model::{Curve, Domain, FinishReason, Limits, Model, Request, RequestId};

/// Requests that one engine works through to find its pace; more change the result by less than a percent.
const SAMPLE: usize = 400;

/// Length of one request.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Prompt tokens.
    pub prompt: u32,
    /// Answer tokens.
    pub answer: u32,
}

/// Seconds that one engine, at `speedup`, needs for `requests` when its queue is never empty and its cache never helps.
pub fn busy_s(requests: &[Size], blocks: u32, block_size: u32, speedup: f64) -> Result<f64, Failure> {
    let blocks = blocks as usize;
    let block_tokens = block_size as usize;
    let limits = Limits { block_tokens, blocks, max_model_tokens: blocks * block_tokens, ..Limits::default() };
    let mut model = Model::new(limits, Curve::default(), speedup).map_err(|e| Failure(e.to_string()))?;
    // Evenly over the workload, so that early and late turns are both there.
    let stride = requests.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<Size> = requests.iter().copied().step_by(stride).collect();
    for (number, size) in sample.iter().enumerate() {
        // The first token differs for every request, so that no prefix is shared.
        let first = number as u32 + 1_000;
        let prompt: Vec<u32> = (0..size.prompt).map(|position| if position == 0 { first } else { position }).collect();
        let answer: Vec<u32> = (0..size.answer.max(1)).collect();
        let request = Request::new(
            RequestId(number as u64),
            prompt.into(),
            answer.into(),
            FinishReason::Length,
            Domain::default(),
            block_tokens,
        );
        model.submit(0, request).map_err(|e| Failure(e.to_string()))?;
    }
    let mut now_us = 0;
    while let Some(step) = model.step(now_us) {
        now_us = step.ends_at_us;
    }
    Ok(now_us as f64 / 1e6 * requests.len() as f64 / sample.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_with_requests_and_shrinks_with_speed() {
        let size = Size { prompt: 2_000, answer: 50 };
        let few = busy_s(&[size; 100], 8_192, 16, 1.0).unwrap();
        let many = busy_s(&[size; 200], 8_192, 16, 1.0).unwrap();
        assert!((1.8..2.2).contains(&(many / few)), "{few} {many}");
        let fast = busy_s(&[size; 100], 8_192, 16, 10.0).unwrap();
        assert!((9.0..11.0).contains(&(few / fast)), "{few} {fast}");
        // 100 prompts cost at least their prefill, which is above 30 ms each.
        assert!(few > 3.0, "{few}");
    }
}

//! Answers as server-sent events.
//!
//! The head goes out at once; what a dialect says before its first token comes with it, as vLLM sends it. Several tokens
//! that became ready together share a frame.

use super::completion::Job;
use super::reply::Choice;
use super::voice::{Frame, New, Voice};
use super::{After, after_cut, stall};
use crate::engine::Life;
use crate::fault::{Fault, FaultKind};
use crate::http::{Connection, LAST_CHUNK, event_stream_head, put_chunk};
use crate::rank::Progress;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// A stream under way, with the faults that were drawn for it.
struct Stream<'a> {
    voice: &'a mut dyn Voice,
    connection: &'a mut Connection,
    stall: Option<Fault>,
    cut: Option<Fault>,
    chunks: u32,
    one_token_frames: bool,
}

pub(super) async fn answer(
    life: &Arc<Life>,
    connection: &mut Connection,
    path: &str,
    voice: &mut dyn Voice,
    mut job: Job,
) -> std::io::Result<After> {
    let stall = life.faults.strike(FaultKind::Stall, path);
    let cut = life.faults.strike(FaultKind::Cut, path);
    let mut stream =
        Stream { voice, connection, stall, cut, chunks: 0, one_token_frames: life.config.one_token_frames };
    stream.connection.stream.write_all(&event_stream_head()).await?;
    let first = stream.voice.begin();
    if let Some(after) = stream.send_all(first).await? {
        return Ok(after);
    }
    loop {
        let states = job.board.states();
        for (index, state) in states.iter().enumerate() {
            if let Some(after) = stream.send_new(index, &mut job.choices[index], state, &states).await? {
                return Ok(after);
            }
        }
        if job.choices.iter().all(|choice| choice.ended) {
            return stream.finish(&job.choices, &states).await;
        }
        tokio::select! {
            () = job.board.changed() => {}
            () = stream.connection.client_gone() => return Ok(After::Close),
        }
    }
}

impl Stream<'_> {
    /// Sends what `choice` has that was not sent. `Some` when a fault ends the connection.
    async fn send_new(
        &mut self,
        index: usize,
        choice: &mut Choice,
        state: &Progress,
        states: &[Progress],
    ) -> std::io::Result<Option<After>> {
        if choice.ended || state.produced == choice.sent {
            return Ok(None);
        }
        let first = if self.one_token_frames { choice.sent + 1 } else { state.produced };
        for upto in first..=state.produced {
            let finish = state.finish.filter(|_| upto == state.produced);
            let frames = self.voice.tokens(&New { index, choice, upto, finish, states });
            choice.sent = upto;
            if let Some(after) = self.send_all(frames).await? {
                return Ok(Some(after));
            }
        }
        choice.ended = state.finish.is_some();
        Ok(None)
    }

    async fn finish(mut self, choices: &[Choice], states: &[Progress]) -> std::io::Result<After> {
        let last = self.voice.end(choices, states);
        if let Some(after) = self.send_all(last).await? {
            return Ok(after);
        }
        let mut out = Vec::with_capacity(32);
        if self.voice.says_done() {
            put_chunk(&mut out, b"data: [DONE]\n\n");
        }
        out.extend_from_slice(LAST_CHUNK);
        self.connection.stream.write_all(&out).await?;
        Ok(After::Keep)
    }

    async fn send_all(&mut self, frames: Vec<Frame>) -> std::io::Result<Option<After>> {
        for frame in frames {
            if let Some(after) = self.send(&frame).await? {
                return Ok(Some(after));
            }
        }
        Ok(None)
    }

    async fn send(&mut self, frame: &Frame) -> std::io::Result<Option<After>> {
        if let Some(fault) = self.cut.take_if(|fault| self.chunks >= fault.after_chunks.unwrap_or(0)) {
            return Ok(Some(after_cut(fault.how)));
        }
        if let Some(fault) = self.stall.take_if(|fault| self.chunks >= fault.after_chunks.unwrap_or(0)) {
            stall(self.connection, &fault).await?;
        }
        self.chunks += 1;
        let mut out = Vec::with_capacity(512);
        put_chunk(&mut out, frame.text().as_bytes());
        self.connection.stream.write_all(&out).await?;
        Ok(None)
    }
}

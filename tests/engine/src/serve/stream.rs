//! Answers as server-sent events.
//!
//! The head goes out at once; a chat's role chunk comes with its first token, as vLLM sends it. Several tokens that
//! became ready together share a chunk.

use super::completion::Job;
use super::reply::{Choice, Envelope};
use super::{After, after_cut, stall};
use crate::engine::Life;
use crate::fault::{Fault, FaultKind};
use crate::http::{Connection, LAST_CHUNK, event_stream_head, put_chunk};
use crate::rank::Progress;
use serde_json::Value;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// A stream under way, with the faults that were drawn for it.
struct Stream<'a> {
    envelope: &'a Envelope<'a>,
    connection: &'a mut Connection,
    stall: Option<Fault>,
    cut: Option<Fault>,
    chunks: u32,
}

pub(super) async fn answer(
    life: &Arc<Life>,
    connection: &mut Connection,
    path: &str,
    envelope: &Envelope<'_>,
    mut job: Job,
) -> std::io::Result<After> {
    let stall = life.faults.strike(FaultKind::Stall, path);
    let cut = life.faults.strike(FaultKind::Cut, path);
    let mut stream = Stream { envelope, connection, stall, cut, chunks: 0 };
    stream.connection.stream.write_all(&event_stream_head()).await?;
    loop {
        let states = job.board.states();
        for (index, state) in states.iter().enumerate() {
            if let Some(after) = stream.send_new(index, &mut job.choices[index], state, &states).await? {
                return Ok(after);
            }
        }
        if job.choices.iter().all(|choice| choice.ended) {
            return stream.finish(&states).await;
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
        if choice.sent == 0 && self.envelope.call.route == super::parse::Route::Chat {
            let chunk = self.envelope.role_chunk(index);
            if let Some(after) = self.send(&chunk).await? {
                return Ok(Some(after));
            }
        }
        let produced = states.iter().map(|state| state.produced).sum();
        let chunk = self.envelope.token_chunk(index, choice, state.produced, state.finish, produced);
        choice.sent = state.produced;
        choice.ended = state.finish.is_some();
        self.send(&chunk).await
    }

    async fn finish(mut self, states: &[Progress]) -> std::io::Result<After> {
        if self.envelope.call.include_usage {
            let chunk = self.envelope.usage_chunk(states);
            if let Some(after) = self.send(&chunk).await? {
                return Ok(after);
            }
        }
        let mut out = Vec::with_capacity(32);
        put_chunk(&mut out, b"data: [DONE]\n\n");
        out.extend_from_slice(LAST_CHUNK);
        self.connection.stream.write_all(&out).await?;
        Ok(After::Keep)
    }

    async fn send(&mut self, chunk: &Value) -> std::io::Result<Option<After>> {
        if let Some(fault) = self.cut.take_if(|fault| self.chunks >= fault.after_chunks.unwrap_or(0)) {
            return Ok(Some(after_cut(fault.how)));
        }
        if let Some(fault) = self.stall.take_if(|fault| self.chunks >= fault.after_chunks.unwrap_or(0)) {
            stall(self.connection, &fault).await?;
        }
        self.chunks += 1;
        let mut out = Vec::with_capacity(512);
        put_chunk(&mut out, format!("data: {chunk}\n\n").as_bytes());
        self.connection.stream.write_all(&out).await?;
        Ok(None)
    }
}

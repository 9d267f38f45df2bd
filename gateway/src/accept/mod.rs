//! accept: socket → request head within limits, with an id.
//!
//! Built on pingora-core's listening `Service` and `ServerApp`: it accepts, sets TCP_NODELAY on every accepted socket and
//! gives each connection its task. From the byte stream up the
//! code is ours, for the reasons that [`crate::http1`] gives. `HttpServerApp` would hand over a session whose head limit
//! is a constant, whose deadlines restart with every read, and which writes heads and bodies apart.
//!
//! ```text
//! listener ─ one task per connection ─► read_head ─► local answer (/health, /v1/models)
//!                  ▲ Slot (max_connections)    └───► serve ─ read_body (Share of max_buffered_bytes) ─► …
//! ```
//!
//! TLS is rustls on the accepted stream, chosen by what `doors` holds at that moment. An HTTP/2 connection (`http2`) is split into
//! streams which each look like a connection of one request.
//!
//! Invariants
//! 1. Every wait inside a request goes through [`Client::race`](crate::stream::Client::race), a read or a write of the client: each of them watches the
//!    deadline, the drain, and (except while input is still expected) the client's leaving.
//! 2. A limit is answered (431, 413, 408, 503) and the connection closed; nothing is read on to find out more.
//! 3. A connection that was answered before its body was read is not used again: what follows could be taken for a
//!    request.
//!
//! Draining has two stages: asked to stop (no new connections, idle ones close, answers say `Connection: close`), and
//! out of time (what still streams ends in an error event, what else runs is cut).

mod body;
mod connection;
mod control;
mod http2;
mod identity;
mod listener;
mod local;
mod reply;

pub use listener::{BindError, Drained, Ingress};
pub use reply::Reply;

pub(crate) use local::unknown_model;

use crate::doors::Caller;
use crate::error::Shape;
use crate::http1::response::Downstream;
use crate::http1::{Framing, RequestHead};
use tokio::time::Instant;

/// One request as it was accepted.
#[derive(Debug)]
pub struct Request {
    /// Its head.
    pub head: RequestHead,
    /// Its id, the client's or ours.
    pub id: String,
    /// When its head was complete.
    pub arrived: Instant,
    /// Who sent it.
    pub caller: Caller,
}

impl Request {
    /// How an answer without a body of its own is framed: to be completed with the framing.
    pub(crate) fn downstream(&self, close: bool) -> Downstream<'_> {
        Downstream {
            framing: Framing::Empty,
            announced: None,
            request_id: &self.id,
            close,
            old_keep_alive: self.head.old && !close,
            diagnostics: self.caller.sees_diagnostics(),
        }
    }

    /// In which shape its errors are written.
    pub(crate) fn shape(&self) -> Shape {
        Shape::of_path(self.head.path())
    }
}

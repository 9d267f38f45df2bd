//! A request as the model sees it, and what the model remembers of it.

use super::hash::{self, BlockHash, Domain};
use super::pool::BlockId;
use std::sync::Arc;

/// Names a request within one model. The driver chooses it and must not use one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// All the tokens that were asked for.
    Length,
    /// The model ended it, or a stop string did.
    Stop,
}

impl FinishReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Stop => "stop",
        }
    }
}

/// A prompt and the output that the model will "generate" for it: known beforehand, revealed token by token.
#[derive(Clone, Debug)]
pub struct Request {
    id: RequestId,
    prompt: Arc<[u32]>,
    output: Arc<[u32]>,
    finish: FinishReason,
    domain: Domain,
    hashes: Arc<[BlockHash]>,
    block_tokens: usize,
    prompt_tokens: usize,
    output_tokens: usize,
}

impl Request {
    /// Hashes every complete block of prompt and output; do it outside any lock, it is the costly part.
    pub fn new(
        id: RequestId,
        prompt: Arc<[u32]>,
        output: Arc<[u32]>,
        finish: FinishReason,
        domain: Domain,
        block_tokens: usize,
    ) -> Self {
        let tokens = prompt.iter().chain(output.iter()).copied();
        let hashes = hash::chain(&domain, tokens, block_tokens.max(1)).into();
        let (prompt_tokens, output_tokens) = (prompt.len(), output.len());
        Self { id, prompt, output, finish, domain, hashes, block_tokens, prompt_tokens, output_tokens }
    }

    /// A request of which only lengths and block hashes are known, as traces have them: [`Self::prompt`],
    /// [`Self::output`] and the tokens of its cache events are empty. `hashes` has one entry for each complete block of
    /// prompt followed by output; equal ones must stand for equal prefixes.
    pub fn from_hashes(
        id: RequestId,
        prompt_tokens: usize,
        output_tokens: usize,
        finish: FinishReason,
        hashes: Arc<[BlockHash]>,
        block_tokens: usize,
    ) -> Self {
        let nothing: Arc<[u32]> = Arc::from([]);
        Self {
            id,
            prompt: nothing.clone(),
            output: nothing,
            finish,
            domain: Domain::default(),
            hashes,
            block_tokens,
            prompt_tokens,
            output_tokens,
        }
    }

    /// Its name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Prompt token ids.
    pub fn prompt(&self) -> &Arc<[u32]> {
        &self.prompt
    }

    /// Length of the prompt, tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Length of the output, tokens.
    pub fn output_tokens(&self) -> usize {
        self.output_tokens
    }

    /// Output token ids.
    pub fn output(&self) -> &Arc<[u32]> {
        &self.output
    }

    /// Why the output ends where it ends.
    pub fn finish(&self) -> FinishReason {
        self.finish
    }

    /// What it shares its cached blocks with.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Hashes of the complete blocks of prompt followed by output.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Block size that it was hashed for, tokens.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Tokens `from..to` of prompt followed by output.
    pub(super) fn tokens(&self, from: usize, to: usize) -> Vec<u32> {
        let all = self.prompt.iter().chain(self.output.iter());
        all.skip(from).take(to - from).copied().collect()
    }
}

/// A request inside the model.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: Request,
    /// Blocks held, in order of position.
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that are findable by others.
    pub(super) published: usize,
    /// Tokens whose KV is in `blocks`.
    pub(super) computed: usize,
    /// Output tokens produced so far.
    pub(super) produced: usize,
    /// When it entered the waiting queue, µs.
    pub(super) queued_at_us: u64,
    /// Set from the first preemption on.
    pub(super) preempted: bool,
    /// Set while it has computed everything known at least once since its last admission.
    pub(super) decoding: bool,
}

impl Sequence {
    pub(super) fn new(request: Request, now_us: u64) -> Self {
        Self {
            request,
            blocks: Vec::new(),
            published: 0,
            computed: 0,
            produced: 0,
            queued_at_us: now_us,
            preempted: false,
            decoding: false,
        }
    }

    /// Tokens whose ids are known: the prompt and what was produced.
    pub(super) fn known(&self) -> usize {
        self.request.prompt_tokens + self.produced
    }
}

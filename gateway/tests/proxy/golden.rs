//! What engines answer in each dialect: vLLM 0.32's shapes, SGLang's for its own route.

/// One dialect's pair of request and answer, and its stream.
pub struct Golden {
    pub path: &'static str,
    pub request: &'static str,
    pub answer: &'static str,
    /// The same answer streamed.
    pub stream: Option<&'static str>,
    /// Frames of the stream after which the cut comes; the last of them carries output.
    pub cut_after: usize,
    /// Frames before the first output.
    pub quiet: usize,
}

impl Golden {
    /// The request for a stream, with usage where that is asked for.
    pub fn streaming(&self) -> String {
        let usage = ["/v1/chat/completions", "/v1/completions", "/inference/v1/generate"].contains(&self.path);
        let options = if usage { r#","stream_options":{"include_usage":true}"# } else { "" };
        format!(r#"{{"stream":true{options},{}"#, &self.request[1..])
    }
}

const fn whole(path: &'static str, request: &'static str, answer: &'static str) -> Golden {
    Golden { path, request, answer, stream: None, cut_after: 0, quiet: 0 }
}

pub const GOLDEN: &[Golden] = &[
    Golden {
        path: "/v1/chat/completions",
        request: r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0}"#,
        answer: r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}"#,
        stream: Some(
            r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" b"},"finish_reason":"stop"}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}

data: [DONE]

"#,
        ),
        cut_after: 2,
        quiet: 1,
    },
    Golden {
        path: "/v1/completions",
        request: r#"{"model":"m","prompt":"hi","max_tokens":2}"#,
        answer: r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a b","finish_reason":"length"}],"usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2}}"#,
        stream: Some(
            r#"data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a","finish_reason":null}]}

data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" b","finish_reason":"length"}]}

data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2}}

data: [DONE]

"#,
        ),
        cut_after: 1,
        quiet: 0,
    },
    Golden {
        path: "/v1/responses",
        request: r#"{"model":"m","input":"hi","instructions":"Be brief.","store":false}"#,
        answer: r#"{"id":"resp_1","object":"response","created_at":1,"model":"m","status":"completed","output":[{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"a b","annotations":[]}]}],"tools":[],"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":9}}"#,
        stream: Some(
            r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","output":[],"usage":null}}

event: response.in_progress
data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1","status":"in_progress","output":[],"usage":null}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"msg_1","type":"message","role":"assistant","status":"in_progress","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":3,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"a"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":" b"}

event: response.output_text.done
data: {"type":"response.output_text.done","sequence_number":5,"item_id":"msg_1","output_index":0,"content_index":0,"text":"a b"}

event: response.completed
data: {"type":"response.completed","sequence_number":6,"response":{"id":"resp_1","status":"completed","usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":3},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":9}}}

"#,
        ),
        cut_after: 4,
        quiet: 3,
    },
    Golden {
        path: "/v1/messages",
        request: r#"{"model":"m","max_tokens":2,"system":"Be brief.","messages":[{"role":"user","content":"hi"}]}"#,
        answer: r#"{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":"a b"}],"model":"m","stop_reason":"max_tokens","usage":{"input_tokens":4,"output_tokens":2,"cache_read_input_tokens":3,"cache_creation_input_tokens":0}}"#,
        stream: Some(
            r#"event: message_start
data: {"type":"message_start","message":{"id":"chatcmpl-1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":7,"output_tokens":0}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" b"},"index":0}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":4,"output_tokens":2,"cache_read_input_tokens":3}}

event: message_stop
data: {"type":"message_stop"}

"#,
        ),
        cut_after: 4,
        quiet: 3,
    },
    whole(
        "/v1/messages/count_tokens",
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"input_tokens":7,"context_management":{"original_input_tokens":7}}"#,
    ),
    Golden {
        path: "/generate",
        request: r#"{"model":"m","text":"hi","sampling_params":{"max_new_tokens":2,"temperature":0}}"#,
        answer: r#"{"text":" a b","output_ids":[5,6],"meta_info":{"id":"1","finish_reason":{"type":"length","length":2},"prompt_tokens":1,"completion_tokens":2,"cached_tokens":0,"e2e_latency":0.1}}"#,
        stream: Some(
            r#"data: {"text":" a","output_ids":[5],"meta_info":{"id":"1","finish_reason":null,"prompt_tokens":1,"completion_tokens":1,"cached_tokens":0}}

data: {"text":" a b","output_ids":[5,6],"meta_info":{"id":"1","finish_reason":{"type":"stop","matched":"}"},"prompt_tokens":1,"completion_tokens":2,"cached_tokens":0}}

data: [DONE]

"#,
        ),
        cut_after: 1,
        quiet: 0,
    },
    Golden {
        path: "/inference/v1/generate",
        request: r#"{"model":"m","token_ids":[1,2,3,4],"sampling_params":{"max_tokens":2}}"#,
        answer: r#"{"request_id":"generate-tokens-1","model":"m","usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2},"output_mode":"tokens","choices":[{"index":0,"finish_reason":"length","token_ids":[5,6]}]}"#,
        stream: Some(
            r#"data: {"request_id":"generate-tokens-1","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,"token_ids":[5]}]}

data: {"request_id":"generate-tokens-1","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":"length","token_ids":[6]}]}

data: {"request_id":"generate-tokens-1","usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2},"output_mode":"tokens","choices":[]}

data: [DONE]

"#,
        ),
        cut_after: 1,
        quiet: 0,
    },
    whole(
        "/v1/embeddings",
        r#"{"model":"m","input":["a","b"],"encoding_format":"float"}"#,
        r#"{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"embedding","embedding":[0.5,-0.25]},{"index":1,"object":"embedding","embedding":[0.5,0.25]}],"usage":{"prompt_tokens":2,"total_tokens":2,"completion_tokens":0,"prompt_tokens_details":null}}"#,
    ),
    whole(
        "/pooling",
        r#"{"model":"m","input":"a"}"#,
        r#"{"id":"pool-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"pooling","data":[[0.5],[0.25]]}],"usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":0}}"#,
    ),
    whole(
        "/rerank",
        r#"{"model":"m","query":"q","documents":["a","b"],"top_n":1}"#,
        r#"{"id":"rerank-1","model":"m","usage":{"prompt_tokens":6,"total_tokens":6},"results":[{"index":1,"document":{"text":"b"},"relevance_score":0.9}]}"#,
    ),
    whole(
        "/v1/rerank",
        r#"{"model":"m","query":"q","documents":["a"]}"#,
        r#"{"id":"rerank-2","model":"m","usage":{"prompt_tokens":3,"total_tokens":3},"results":[{"index":0,"document":{"text":"a"},"relevance_score":0.1}]}"#,
    ),
    whole(
        "/score",
        r#"{"model":"m","text_1":"q","text_2":["a","b"]}"#,
        r#"{"id":"embd-2","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.5},{"index":1,"object":"score","score":0.25}],"usage":{"prompt_tokens":6,"total_tokens":6,"completion_tokens":0}}"#,
    ),
    whole(
        "/tokenize",
        r#"{"model":"m","prompt":"hi"}"#,
        r#"{"count":1,"max_model_len":8192,"tokens":[6023],"token_strs":null}"#,
    ),
    whole("/detokenize", r#"{"model":"m","tokens":[6023]}"#, r#"{"prompt":"hi"}"#),
];

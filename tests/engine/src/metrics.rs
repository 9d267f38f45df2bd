//! What `/metrics` of one rank tells, under vLLM's names.

use crate::model::{FinishReason, Limits, Load};
use std::fmt::Write;

/// Bounds of the latency histograms of whole requests, s.
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// Bounds of the time to the first token, s.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Bounds of the time between tokens, s.
const TOKEN_SECONDS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
/// Bounds of token counts.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0,
];
/// Bounds of the tokens of a step.
const STEP_TOKENS: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Bounds of `n`.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// Bounds of the preemptions of a request.
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Cumulative counts under fixed bounds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }
}

/// Everything counted since the engine started.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) prefix_queries: u64,
    pub(crate) prefix_hits: u64,
    pub(crate) preemptions: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) success_stop: u64,
    pub(crate) success_length: u64,
    pub(crate) rejections: u64,
    pub(crate) aborted: u64,
    pub(crate) first_token_s: Histogram,
    pub(crate) inter_token_s: Histogram,
    pub(crate) per_token_s: Histogram,
    pub(crate) e2e_s: Histogram,
    pub(crate) queue_s: Histogram,
    pub(crate) inference_s: Histogram,
    pub(crate) prefill_s: Histogram,
    pub(crate) decode_s: Histogram,
    pub(crate) step_tokens: Histogram,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    pub(crate) request_max_tokens: Histogram,
    pub(crate) request_choices: Histogram,
    pub(crate) request_preemptions: Histogram,
    pub(crate) request_computed_tokens: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            prefix_queries: 0,
            prefix_hits: 0,
            preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            success_stop: 0,
            success_length: 0,
            rejections: 0,
            aborted: 0,
            first_token_s: Histogram::new(FIRST_TOKEN_SECONDS),
            inter_token_s: Histogram::new(TOKEN_SECONDS),
            per_token_s: Histogram::new(TOKEN_SECONDS),
            e2e_s: Histogram::new(REQUEST_SECONDS),
            queue_s: Histogram::new(REQUEST_SECONDS),
            inference_s: Histogram::new(REQUEST_SECONDS),
            prefill_s: Histogram::new(REQUEST_SECONDS),
            decode_s: Histogram::new(REQUEST_SECONDS),
            step_tokens: Histogram::new(STEP_TOKENS),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generation_tokens: Histogram::new(TOKENS),
            request_max_tokens: Histogram::new(TOKENS),
            request_choices: Histogram::new(CHOICES),
            request_preemptions: Histogram::new(PREEMPTIONS),
            request_computed_tokens: Histogram::new(TOKENS),
        }
    }
}

impl Metrics {
    /// Counts a request that ran to its end.
    pub(crate) fn count_success(&mut self, finish: FinishReason) {
        match finish {
            FinishReason::Stop => self.success_stop += 1,
            FinishReason::Length => self.success_length += 1,
        }
    }
}

/// What a page is made from, one entry for each rank.
pub(crate) struct RankPage<'a> {
    pub(crate) metrics: &'a Metrics,
    pub(crate) load: Load,
    pub(crate) limits: &'a Limits,
}

/// The page of an engine.
pub(crate) struct Page<'a> {
    pub(crate) model: &'a str,
    pub(crate) started_unix_s: f64,
    pub(crate) ranks: Vec<RankPage<'a>>,
}

impl Page<'_> {
    /// The exposition text.
    pub(crate) fn render(&self) -> String {
        let mut out = Exposition { out: String::with_capacity(32 << 10), created: self.started_unix_s };
        out.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.");
        out.sample("process_start_time_seconds", "", self.started_unix_s);
        self.gauges(&mut out);
        self.counters(&mut out);
        self.labelled_counters(&mut out);
        self.histograms(&mut out);
        self.cache_config(&mut out);
        out.out
    }

    fn labels(&self, rank: usize, before: &str, after: &str) -> String {
        // Labels come in alphabetical order, as Python's client prints them.
        let model = escape(self.model);
        format!("engine=\"{rank}\"{before},model_name=\"{model}\"{after}")
    }

    fn gauges(&self, out: &mut Exposition) {
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&RankPage) -> f64| {
            out.family(name, "gauge", help);
            for (rank, page) in self.ranks.iter().enumerate() {
                out.sample(name, &self.labels(rank, "", ""), value(page));
            }
        };
        gauge("vllm:num_requests_running", "Number of requests in model execution batches.", &|p| {
            p.load.running as f64
        });
        gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", &|p| p.load.waiting as f64);
        gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", &|p| {
            p.load.used_blocks as f64 / p.limits.blocks as f64
        });
        let name = "vllm:num_requests_waiting_by_reason";
        out.family(name, "gauge", "Number of waiting requests by reason.");
        for (rank, page) in self.ranks.iter().enumerate() {
            out.sample(name, &self.labels(rank, "", ",reason=\"capacity\""), page.load.waiting as f64);
            out.sample(name, &self.labels(rank, "", ",reason=\"deferred\""), 0.0);
        }
        let name = "vllm:engine_sleep_state";
        out.family(name, "gauge", "Engine sleep state; awake = 1 means the engine is awake.");
        for rank in 0..self.ranks.len() {
            out.sample(name, &self.labels(rank, "", ",sleep_state=\"awake\""), 1.0);
        }
    }

    fn counters(&self, out: &mut Exposition) {
        let mut counter = |name: &str, help: &str, value: &dyn Fn(&Metrics) -> u64| {
            let one = |(rank, page): (usize, &RankPage)| (self.labels(rank, "", ""), value(page.metrics) as f64);
            let samples: Vec<_> = self.ranks.iter().enumerate().map(one).collect();
            out.counter(name, help, &samples);
        };
        counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", &|m| {
            m.prefix_queries
        });
        counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", &|m| {
            m.prefix_hits
        });
        counter("vllm:external_prefix_cache_queries", "External prefix cache queries, in tokens.", &|_| 0);
        counter("vllm:external_prefix_cache_hits", "External prefix cache hits, in tokens.", &|_| 0);
        counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", &|m| m.preemptions);
        counter("vllm:prompt_tokens", "Number of prefill tokens processed.", &|m| m.prompt_tokens);
        counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", &|m| m.prefix_hits);
        counter("vllm:generation_tokens", "Number of generation tokens processed.", &|m| m.generation_tokens);
    }

    fn labelled_counters(&self, out: &mut Exposition) {
        let mut counter = |name: &str,
                           help: &str,
                           label: &str,
                           early: bool,
                           values: &dyn Fn(&Metrics) -> Vec<(&'static str, u64)>| {
            let mut samples = Vec::new();
            for (rank, page) in self.ranks.iter().enumerate() {
                for (word, value) in values(page.metrics) {
                    let pair = format!(",{label}=\"{word}\"");
                    let (before, after) = if early { (pair.as_str(), "") } else { ("", pair.as_str()) };
                    samples.push((self.labels(rank, before, after), value as f64));
                }
            }
            out.counter(name, help, &samples);
        };
        counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source", false, &|m| {
            let computed = m.prompt_tokens.saturating_sub(m.prefix_hits);
            vec![("local_compute", computed), ("local_cache_hit", m.prefix_hits), ("external_kv_transfer", 0)]
        });
        counter(
            "vllm:prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by cache tier.",
            "source",
            false,
            &|m| vec![("device", m.prefix_hits), ("host", 0), ("p2p", 0), ("disk", 0), ("external_unspecified", 0)],
        );
        // Aborted requests are not counted by the real engine either.
        counter("vllm:request_success", "Count of successfully processed requests.", "finished_reason", true, &|m| {
            vec![("stop", m.success_stop), ("length", m.success_length), ("abort", 0), ("error", 0), ("repetition", 0)]
        });
        let rejected: u64 = self.ranks.iter().map(|page| page.metrics.rejections).sum();
        let model = escape(self.model);
        out.counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            &[
                (format!("model_name=\"{model}\",reason=\"max_num_queued_reqs\""), rejected as f64),
                (format!("model_name=\"{model}\",reason=\"max_num_queued_tokens\""), 0.0),
            ],
        );
    }

    fn histograms(&self, out: &mut Exposition) {
        type Select = fn(&Metrics) -> &Histogram;
        let all: [(&str, &str, Select); 15] = [
            ("request_prompt_tokens", "Number of prefill tokens processed.", |m| &m.request_prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", |m| &m.request_generation_tokens),
            ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", |m| &m.step_tokens),
            ("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", |m| {
                &m.request_max_tokens
            }),
            ("request_params_n", "Histogram of the n request parameter.", |m| &m.request_choices),
            ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", |m| &m.request_max_tokens),
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", |m| &m.first_token_s),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", |m| &m.inter_token_s),
            ("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", |m| {
                &m.per_token_s
            }),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", |m| &m.e2e_s),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", |m| &m.queue_s),
            ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", |m| {
                &m.inference_s
            }),
            ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", |m| &m.prefill_s),
            ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", |m| &m.decode_s),
            ("request_num_preemptions", "Histogram of the number of times a request was preempted.", |m| {
                &m.request_preemptions
            }),
        ];
        for (name, help, select) in all {
            let ranks: Vec<_> = self.ranks.iter().map(|page| select(page.metrics)).collect();
            self.histogram(out, &format!("vllm:{name}"), help, &ranks);
        }
        let computed: Vec<_> = self.ranks.iter().map(|page| &page.metrics.request_computed_tokens).collect();
        let help = "Histogram of new KV tokens computed during prefill (excluding cached tokens).";
        self.histogram(out, "vllm:request_prefill_kv_computed_tokens", help, &computed);
    }

    fn histogram(&self, out: &mut Exposition, name: &str, help: &str, ranks: &[&Histogram]) {
        out.family(name, "histogram", help);
        for (rank, histogram) in ranks.iter().enumerate() {
            let mut total = 0;
            for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
                total += count;
                let labels = self.labels(rank, &format!(",le=\"{bound:?}\""), "");
                out.sample(&format!("{name}_bucket"), &labels, total as f64);
            }
            out.sample(&format!("{name}_bucket"), &self.labels(rank, ",le=\"+Inf\"", ""), histogram.count as f64);
            out.sample(&format!("{name}_count"), &self.labels(rank, "", ""), histogram.count as f64);
            out.sample(&format!("{name}_sum"), &self.labels(rank, "", ""), histogram.sum);
        }
        let created = format!("{name}_created");
        out.family(&created, "gauge", help);
        for rank in 0..ranks.len() {
            out.sample(&created, &self.labels(rank, "", ""), out.created);
        }
    }

    fn cache_config(&self, out: &mut Exposition) {
        let name = "vllm:cache_config_info";
        out.family(name, "gauge", "Information of the LLMEngine CacheConfig");
        for (rank, page) in self.ranks.iter().enumerate() {
            let (size, blocks) = (page.limits.block_tokens, page.limits.blocks);
            let labels = format!(
                "block_size=\"{size}\",cache_dtype=\"auto\",effective_attention_block_size=\"{size}\",\
                 enable_prefix_caching=\"True\",engine=\"{rank}\",gpu_memory_utilization=\"0.92\",\
                 kv_cache_size_tokens=\"{tokens}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",\
                 num_gpu_blocks_override=\"None\",prefix_caching_hash_algo=\"sha256_cbor\",sliding_window=\"None\"",
                tokens = size * blocks,
            );
            out.sample(name, &labels, 1.0);
        }
    }
}

struct Exposition {
    out: String,
    created: f64,
}

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        if labels.is_empty() {
            self.line(format_args!("{name} {value:?}\n"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value:?}\n"));
        }
    }

    /// A counter with its `_total` and `_created` samples.
    fn counter(&mut self, name: &str, help: &str, samples: &[(String, f64)]) {
        let (total, created) = (format!("{name}_total"), format!("{name}_created"));
        self.family(&total, "counter", help);
        for (labels, value) in samples {
            self.sample(&total, labels, *value);
        }
        self.family(&created, "gauge", help);
        for (labels, _) in samples {
            self.sample(&created, labels, self.created);
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// (name, label names) of every sample.
    fn series(page: &str) -> BTreeSet<(String, Vec<String>)> {
        let parse = |line: &str| {
            let head = line.rsplit_once(' ').unwrap().0;
            let (name, labels) =
                head.split_once('{').map_or((head, ""), |(name, rest)| (name, rest.trim_end_matches('}')));
            let names =
                labels.split("\",").filter(|l| !l.is_empty()).map(|pair| pair.split('=').next().unwrap().to_owned());
            (name.to_owned(), names.collect())
        };
        page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(parse).collect()
    }

    #[test]
    fn every_series_exists_in_the_real_engine_with_the_same_labels() {
        let metrics = Metrics::default();
        let limits = Limits::default();
        let ranks = vec![RankPage { metrics: &metrics, load: Load::default(), limits: &limits }];
        let page = Page { model: "tiny", started_unix_s: 1.0, ranks }.render();
        let real = series(include_str!("../fixtures/vllm/metrics_a.prom"));
        for one in series(&page) {
            if one.0 == "vllm:cache_config_info" {
                continue; // a subset of its labels, below
            }
            assert!(real.contains(&one), "{one:?} is not a series of the real engine");
        }
        let config = |all: &BTreeSet<(String, Vec<String>)>| -> BTreeSet<String> {
            all.iter().find(|(name, _)| name == "vllm:cache_config_info").unwrap().1.iter().cloned().collect()
        };
        assert!(config(&series(&page)).is_subset(&config(&real)));
        for wanted in [
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:prefix_cache_hits_total",
            "vllm:time_to_first_token_seconds_bucket",
            "vllm:request_queue_time_seconds_sum",
        ] {
            assert!(page.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn buckets_are_cumulative_and_inclusive() {
        let mut histogram = Histogram::new(CHOICES);
        [1.0, 1.5, 2.0, 99.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.counts, [1, 2, 0, 0, 0]);
        assert_eq!((histogram.count, histogram.sum), (4, 103.5));
    }
}

//! Paths with which engines are controlled or tell about others' requests, as vLLM, SGLang and TensorRT-LLM name them. They reach
//! engines like any path that is not understood here, so a gateway that let everybody through would hand everybody the
//! engines' levers.

use crate::config::resolved::Control;
use crate::doors::Caller;
use crate::error::Fault;

/// Sorted; compared without escapes and without a slash at the end.
const PATHS: [&str; 62] = [
    "/abort_request",
    "/abort_requests",
    "/clear_hicache_storage_backend",
    "/close_session",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/dump_expert_distribution_record",
    "/flush_cache",
    "/freeze_gc",
    "/get_internal_state",
    "/get_load",
    "/get_server_info",
    "/get_weights_by_name",
    "/get_world_size",
    "/init_weight_transfer_engine",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_cache_events",
    "/kv_event_sources",
    "/load",
    "/load_lora_adapter",
    "/metrics",
    "/open_session",
    "/pause",
    "/pause_generation",
    "/perf_metrics",
    "/prometheus/metrics",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/send_weights_to_remote_instance",
    "/server_info",
    "/set_internal_state",
    "/sleep",
    "/slow_down",
    "/start_expert_distribution_record",
    "/start_profile",
    "/stop_expert_distribution_record",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/v1/load_lora_adapter",
    "/v1/loads",
    "/v1/start_profile",
    "/v1/stop_profile",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weights_checker",
];

/// Lets `caller` through to `path`, or says why not.
pub(super) fn check(control: Control, caller: &Caller, path: &str) -> Result<(), Fault> {
    let allowed = match control {
        Control::Everybody => true,
        Control::Operators => caller.may_operate,
        Control::Nobody => false,
    };
    if allowed || !is_control(path) {
        return Ok(());
    }
    let message = "this path controls an engine; it is for callers with the role `operate` (requests.engine_control)";
    Err(Fault { kind: "permission_error", ..Fault::client(403, "engine_control", message) })
}

fn is_control(path: &str) -> bool {
    let plain = unescape(path);
    let plain = plain.trim_end_matches('/');
    PATHS.binary_search_by(|known| (*known).as_bytes().cmp(plain.as_bytes())).is_ok()
}

/// As engines read a path: `%66` is `f`.
fn unescape(path: &str) -> std::borrow::Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten().and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levers_are_for_operators_however_they_are_written() {
        assert!(PATHS.is_sorted(), "it is searched by halves");
        let operator = Caller { tenant: Some("ops".into()), may_use: true, may_operate: true };
        for path in ["/flush_cache", "/%66lush_cache", "/flush_cache/", "/v1/load_lora_adapter", "/sleep", "/metrics"] {
            assert_eq!(
                check(Control::Operators, &Caller::anybody(), path).map_err(|fault| fault.status),
                Err(403),
                "{path}"
            );
            assert!(check(Control::Operators, &operator, path).is_ok());
            assert!(check(Control::Nobody, &operator, path).is_err());
            assert!(check(Control::Everybody, &Caller::anybody(), path).is_ok());
        }
        for path in ["/v1/embeddings", "/tokenize", "/sleepy", "/v1/models", "/"] {
            assert!(check(Control::Nobody, &Caller::anybody(), path).is_ok(), "{path}");
        }
    }
}

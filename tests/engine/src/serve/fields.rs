//! Fields of request bodies, or why they cannot be read.

use super::error::ApiError;
use serde_json::{Map, Value};

/// The body as an object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body).map_err(|e| ApiError::not_json(&e))? {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::bad_request("Input should be a valid dictionary", None)),
    }
}

pub(super) fn wrong_type(param: &str, wanted: &str) -> ApiError {
    ApiError::bad_request(format!("{param}: Input should be {wanted}"), Some(param))
}

pub(super) fn flag(body: &Map<String, Value>, name: &str) -> Result<bool, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong_type(name, "a valid boolean")),
    }
}

pub(super) fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong_type(name, "a valid string")),
    }
}

pub(super) fn count(body: &Map<String, Value>, name: &str) -> Result<Option<usize>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|value| usize::try_from(value).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(wrong_type(name, "a valid integer, not negative")),
        },
    }
}

/// A member that is an object, empty where it is absent.
pub(super) fn member(body: &Map<String, Value>, name: &str) -> Result<Map<String, Value>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(_) => Err(wrong_type(name, "a valid dictionary")),
    }
}

/// A string or a list of strings.
pub(super) fn texts(body: &Map<String, Value>, name: &str) -> Result<Vec<String>, ApiError> {
    let invalid = || wrong_type(name, "a string or a list of strings");
    match body.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(list)) => {
            list.iter().map(|one| one.as_str().map(str::to_owned).ok_or_else(invalid)).collect()
        }
        Some(_) => Err(invalid()),
    }
}

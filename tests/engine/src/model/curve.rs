//! What a step costs.
//!
//! `prefill_ms(c, u) = a·((c+u)² − c²) + b·u + k` for `u` tokens computed after `c` that were there already, and
//! `decode_ms(p) = max(floor, q2·p² + q1·p + q0)` for a fraction `p` of the KV cache in use. A step that prefills
//! several requests sums their polynomials and pays `k` once.

use serde::Deserialize;

/// Coefficients of both curves. The default is the polynomial that Dynamo's mocker uses for a large GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Curve {
    /// `a`, ms per token².
    pub prefill_quadratic_ms: f64,
    /// `b`, ms per token.
    pub prefill_linear_ms: f64,
    /// `k`, ms per step that prefills.
    pub prefill_constant_ms: f64,
    /// `q2`, ms.
    pub decode_quadratic_ms: f64,
    /// `q1`, ms.
    pub decode_linear_ms: f64,
    /// `q0`, ms.
    pub decode_constant_ms: f64,
    /// Least duration of a decode step, ms.
    pub decode_floor_ms: f64,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            prefill_quadratic_ms: 4.209989e-7,
            prefill_linear_ms: 1.518344e-2,
            prefill_constant_ms: 16.50142,
            decode_quadratic_ms: -25.74,
            decode_linear_ms: 54.01,
            decode_constant_ms: 5.74,
            decode_floor_ms: 1.0,
        }
    }
}

impl Curve {
    /// Reads coefficients from TOML; absent ones keep their default. Errors name the line.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let curve: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        let all = [
            curve.prefill_quadratic_ms,
            curve.prefill_linear_ms,
            curve.prefill_constant_ms,
            curve.decode_quadratic_ms,
            curve.decode_linear_ms,
            curve.decode_constant_ms,
            curve.decode_floor_ms,
        ];
        if all.iter().any(|c| !c.is_finite()) || curve.decode_floor_ms < 0.0 {
            return Err("coefficients must be finite and decode_floor_ms not negative".to_owned());
        }
        Ok(curve)
    }

    /// Cost of `new` tokens after `cached`, without the constant, ms.
    pub fn prefill_part_ms(&self, cached: usize, new: usize) -> f64 {
        let (c, u) = (cached as f64, new as f64);
        self.prefill_quadratic_ms * ((c + u) * (c + u) - c * c) + self.prefill_linear_ms * u
    }

    /// Cost of a step that prefills `new` tokens of one request after `cached`, ms.
    pub fn prefill_ms(&self, cached: usize, new: usize) -> f64 {
        self.prefill_part_ms(cached, new) + self.prefill_constant_ms
    }

    /// Cost of one decode step with the fraction `usage` of the cache held by running requests, ms.
    pub fn decode_ms(&self, usage: f64) -> f64 {
        let p = usage.min(1.0);
        let polynomial = self.decode_quadratic_ms * p * p + self.decode_linear_ms * p + self.decode_constant_ms;
        polynomial.max(self.decode_floor_ms)
    }
}

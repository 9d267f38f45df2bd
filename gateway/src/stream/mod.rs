//! stream: upstream bytes → client bytes.

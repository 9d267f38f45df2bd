//! admin: the operator's listener.
